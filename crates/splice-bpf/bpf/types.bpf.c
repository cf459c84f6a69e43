// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Never loaded: its BTF is what src/types.rs is generated from (crates/generate-bpf-types, which
 * says what the sections mean). A type that the programs and user space share gets a variable here.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "clock.h"
#include "hooks.h"
#include "redirect.h"
#include "segment/shared.h"

#define VALUE SEC("value")
#define SHARED SEC("shared")
#define CONSTANTS SEC("constants")
#define NAMES SEC("names")

struct inspection inspection VALUE;
struct segment_tuple segment_tuple VALUE;
struct segment_place segment_place VALUE;
struct segment_inspection segment_inspection VALUE;
struct hooks_list hooks_list VALUE;
struct clock_reading clock_reading VALUE;

struct direction_entry direction_entry SHARED;
struct segment_flow segment_flow SHARED;
struct segment_change_over segment_change_over SHARED;
struct segment_gate segment_gate SHARED;

enum segment_state segment_state CONSTANTS;
enum segment_mark segment_mark CONSTANTS;
enum segment_flag segment_flag CONSTANTS;
enum segment_socket_flag segment_socket_flag CONSTANTS;
enum segment_tracked segment_tracked CONSTANTS;
enum hooks_place hooks_place CONSTANTS;
enum hooks_limit hooks_limit CONSTANTS;

enum segment_reason segment_reason NAMES;

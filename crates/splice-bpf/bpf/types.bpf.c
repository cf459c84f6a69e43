// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Never loaded: its BTF is what src/types.rs is generated from (crates/generate-bpf-types, which
 * says what the sections mean). A type that the programs and user space share gets a variable here.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "bypass.h"
#include "catcher.h"
#include "clock.h"
#include "hooks.h"
#include "mesh.h"
#include "redirect.h"
#include "redirections.h"
#include "segment/shared.h"
#include "trace.h"
#include "lib/bound.h"
#include "lib/lease.h"

#define VALUE SEC("value")
#define SHARED SEC("shared")
#define CONSTANTS SEC("constants")
#define NAMES SEC("names")

struct inspection inspection VALUE;
struct segment_tuple segment_tuple VALUE;
struct segment_place segment_place VALUE;
struct segment_inspection segment_inspection VALUE;
struct segment_end segment_end VALUE;
struct segment_listener segment_listener VALUE;
struct segment_route segment_route VALUE;
struct segment_released segment_released VALUE;
struct hooks_list hooks_list VALUE;
struct clock_reading clock_reading VALUE;
struct admission admission VALUE;
struct bypass_key bypass_key VALUE;
struct bypass_member bypass_member VALUE;
struct bypass_end bypass_end VALUE;
struct bypass_pair bypass_pair VALUE;
struct bypass_question bypass_question VALUE;
struct bypass_capture_setting bypass_capture_setting VALUE;
struct bypass_message bypass_message VALUE;
struct caught_connection caught_connection VALUE;
struct catcher_filter catcher_filter VALUE;
struct redirection redirection VALUE;
struct redirections_setting redirections_setting VALUE;
struct redirections_look redirections_look VALUE;
struct redirections_unknown redirections_unknown VALUE;
struct redirection_bound redirection_bound VALUE;
struct mesh_framing mesh_framing VALUE;
struct mesh_record mesh_record VALUE;
struct mesh_part mesh_part VALUE;
struct mesh_inspection mesh_inspection VALUE;
struct trace_settings trace_settings VALUE;
struct trace_stack trace_stack VALUE;

struct direction_entry direction_entry SHARED;
struct segment_flow segment_flow SHARED;
struct segment_change_over segment_change_over SHARED;
struct segment_cold segment_cold SHARED;
struct segment_gate segment_gate SHARED;
struct segment_origin segment_origin SHARED;
struct mesh_member mesh_member SHARED;
struct bypass_settings bypass_settings SHARED;
struct lease lease SHARED;
struct trace_state trace_state SHARED;
struct trace_symbol trace_symbol SHARED;

enum segment_state segment_state CONSTANTS;
enum segment_mark segment_mark CONSTANTS;
enum segment_flag segment_flag CONSTANTS;
enum segment_socket_flag segment_socket_flag CONSTANTS;
enum segment_tracked segment_tracked CONSTANTS;
enum admission_stage admission_stage CONSTANTS;
enum redirections_version redirections_version CONSTANTS;
enum redirection_pass redirection_pass CONSTANTS;
enum redirections_verb redirections_verb CONSTANTS;
enum bound_cost bound_cost CONSTANTS;
enum bypass_version bypass_version CONSTANTS;
enum bypass_role bypass_role CONSTANTS;
enum bypass_state bypass_state CONSTANTS;
enum bypass_trait bypass_trait CONSTANTS;
enum bypass_patience bypass_patience CONSTANTS;
enum bypass_obstacle bypass_obstacle CONSTANTS;
enum bypass_verb bypass_verb CONSTANTS;
enum bypass_answer bypass_answer CONSTANTS;
enum bypass_capture_limit bypass_capture_limit CONSTANTS;
enum hooks_place hooks_place CONSTANTS;
enum hooks_limit hooks_limit CONSTANTS;
enum mesh_role mesh_role CONSTANTS;
enum mesh_size mesh_size CONSTANTS;
enum mesh_reason mesh_reason CONSTANTS;
enum trace_limit trace_limit CONSTANTS;
enum trace_handle trace_handle CONSTANTS;
enum trace_cookie trace_cookie CONSTANTS;
enum trace_kind trace_kind CONSTANTS;

enum segment_reason segment_reason NAMES;
enum trace_point trace_point NAMES;

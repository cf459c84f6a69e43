//! The contract of ARCHITECTURE.md, once per engine.
//!
//! ```text
//! every_engine.rs   which rules there are, and which engines are held to them
//! rule/*.rs         one file per rule: what an engine has to do
//! support/*.rs      peers, payloads, the relay under test: what the rules are written with
//! ```
//!
//! A new engine is one line at the end of this file and one constant in `support/contestant.rs`.
//! `SPLICED_SEED=N` repeats the random choices of a failed run, which names its seed.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

mod support {
    pub(crate) mod alone;
    pub(crate) mod apart;
    pub(crate) mod contestant;
    pub(crate) mod descriptors;
    pub(crate) mod driven;
    pub(crate) mod mix;
    pub(crate) mod patience;
    pub(crate) mod payload;
    pub(crate) mod peer;
    pub(crate) mod random;
    pub(crate) mod relay;
    pub(crate) mod system_calls;
    pub(crate) mod tls;
    pub(crate) mod transfer;
    pub(crate) mod witness;
}

mod rule {
    pub(crate) mod back_pressure;
    pub(crate) mod byte_limit;
    pub(crate) mod counters;
    pub(crate) mod echo;
    pub(crate) mod engine_choice;
    pub(crate) mod event_loop;
    pub(crate) mod every_byte;
    pub(crate) mod half_close;
    pub(crate) mod half_close_timeout;
    pub(crate) mod idle;
    pub(crate) mod nothing_left;
    pub(crate) mod observer;
    pub(crate) mod peer_timeouts;
    pub(crate) mod proof;
    pub(crate) mod reset;
    pub(crate) mod scarce_pipes;
    pub(crate) mod shutdown;
    mod upper_protocol;
    pub(crate) mod urgent;
}

macro_rules! tests {
    ($run:tt $contestant:ident; $($rule:ident: $($test:ident)*;)*) => {
        $(mod $rule {
            $(test! { $run $contestant $rule $test })*
        })*
    };
}

macro_rules! test {
    ((always) $contestant:ident $rule:ident $test:ident) => {
        #[test]
        fn $test() {
            let contestant = &crate::support::contestant::$contestant;
            if contestant.is_available() {
                crate::rule::$rule::$test(contestant);
            }
        }
    };
    ((apart) $contestant:ident $rule:ident $test:ident) => {
        #[test]
        fn $test() {
            crate::support::apart::apart(&[], || {
                crate::rule::$rule::$test(&crate::support::contestant::$contestant);
            });
        }
    };
    ((apart_from_peers) $contestant:ident $rule:ident $test:ident) => {
        #[test]
        fn $test() {
            crate::support::apart::apart_from_peers(|| {
                crate::rule::$rule::$test(&crate::support::contestant::$contestant);
            });
        }
    };
    ((apart_without_timestamps) $contestant:ident $rule:ident $test:ident) => {
        #[test]
        fn $test() {
            crate::support::apart::apart(&[("net.ipv4.tcp_timestamps", "0")], || {
                crate::rule::$rule::$test(&crate::support::contestant::$contestant);
            });
        }
    };
}

/// The last argument is compared with the engine's own promise of cost.
macro_rules! contract {
    ($engine:ident, $contestant:ident, $run:tt) => {
        contract!($engine, $contestant, $run, $contestant);
    };
    ($engine:ident, $contestant:ident, $run:tt, $itself:ident) => {
        mod $engine {
            tests! { $run $itself;
                engine_choice:
                    is_visible
                    refuses_what_cannot_be_joined;
                proof:
                    small_messages_cost_one_read_and_one_write
                    bulk_goes_by_this_engine
                    an_idle_pair_wakes_nobody;
                scarce_pipes:
                    more_stalled_pairs_than_pipes
                    no_descriptor_for_a_pipe;
            }
            tests! { $run $contestant;
                every_byte:
                    both_ways_at_once
                    bytes_queued_before_the_join
                    one_byte_at_a_time
                    peers_that_ended_before_the_join
                    a_peer_that_closed_before_the_join
                    a_peer_that_closed_while_the_other_is_slow
                    of_sockets_that_were_to_be_reset
                    behind_a_passed_descriptor
                    small_segments;
                half_close:
                    the_other_direction_goes_on
                    both_ways_with_a_backlog
                    with_nothing_sent;
                reset:
                    while_idle
                    in_the_middle_of_a_transfer
                    in_the_middle_of_a_backlog
                    behind_messages_that_nobody_takes
                    though_duplicates_are_held
                    after_its_own_half_close
                    after_the_half_close_of_the_other
                    by_closing_with_unread_data
                    before_the_endpoint_is_made
                    before_the_join
                    together_with_a_half_close;
                back_pressure:
                    one_direction
                    both_directions
                    a_small_bound
                    a_small_bound_while_the_loop_pauses
                    every_kind;
                idle:
                    ends_a_silent_pair
                    ends_a_stalled_pair
                    leaves_a_talking_pair
                    leaves_a_pair_that_talks_beside_a_blocked_direction
                    leaves_a_pair_that_talks_beside_a_direction_blocked_from_the_start;
                half_close_timeout:
                    ends_a_half_closed_pair
                    leaves_a_pair_whose_other_direction_moves
                    leaves_a_pair_of_two_streams;
                peer_timeouts:
                    are_set_on_both_sockets
                    stay_as_the_caller_has_set_them;
                byte_limit:
                    cuts_at_the_byte
                    at_the_end_of_the_stream
                    is_not_reached
                    delivers_all_though_the_receiver_talks;
                counters:
                    follow_a_running_transfer
                    are_exact_after_a_reset
                    are_exact_with_an_acknowledgement_due;
                observer:
                    agrees_with_the_peers_and_the_outcome
                    knows_when_a_byte_last_moved
                    knows_which_stream_is_draining
                    knows_which_stream_has_ended;
                shutdown:
                    dropping_the_handle
                    dropping_the_handle_of_a_stalled_pair
                    dropping_the_handle_at_once
                    dropping_the_splicer
                    dropping_the_event_loop
                    detaching_the_handle;
                nothing_left:
                    of_pairs_that_ended_in_every_way
                    of_five_hundred_pairs_at_once;
                event_loop:
                    driven_by_the_caller
                    idle_timeout_through_the_descriptor
                    a_listening_task
                    a_deadline_set_between_turns;
                urgent:
                    stays_in_its_place
                    holds_nothing_up
                    before_the_end_of_the_stream;
                echo:
                    every_byte
                    what_was_there_before
                    a_client_that_does_not_read
                    a_reset_ends_it
                    limits_end_it
                    has_no_half_close_timeout
                    many_at_once
                    costs_what_the_engine_promises;
            }
        }
    };
}

contract!(copy, COPY, (always));
contract!(pipe, PIPE, (always));
contract!(uring, URING, (always));
contract!(auto, AUTO, (always), AUTO_BY_HAND);
contract!(aio, AIO, (always));
contract!(sockmap, SOCKMAP, (always));
contract!(segment, SEGMENT, (apart));
contract!(segment_v6, SEGMENT_V6, (apart));
contract!(
    segment_without_timestamps,
    SEGMENT,
    (apart_without_timestamps)
);
contract!(segment_over_veths, SEGMENT, (apart_from_peers));
contract!(segment_over_veths_v6, SEGMENT_V6, (apart_from_peers));

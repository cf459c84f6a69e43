use super::*;

/// Both sequence spaces wrap within the redirected bytes.
const ACCOUNT: Account = Account {
    redirected_bytes: 1 << 33 | 500,
    base_seq: u32::MAX - 99,
    target_seq: u32::MAX - 199,
};
/// Behind everything that was redirected.
const SOURCE_SEQ: u32 = 400;
const TARGET_SEQ: u32 = 300;

fn source(copied_seq: u32, rcv_nxt: u32) -> Inspection {
    Inspection {
        copied_seq,
        rcv_nxt,
        state: ESTABLISHED,
        ..Inspection::default()
    }
}

fn target(write_seq: u32) -> Inspection {
    Inspection {
        write_seq,
        ..Inspection::default()
    }
}

#[test]
fn the_backlog_is_what_the_target_has_not_taken() {
    for backlog in [0, 1, 450] {
        let target = target(TARGET_SEQ.wrapping_sub(backlog));
        assert_eq!(ACCOUNT.backlog_bytes(&target), backlog);
        let pushed = ACCOUNT.redirected_bytes - u64::from(backlog);
        assert_eq!(ACCOUNT.pushed_bytes(&target), pushed);
    }
}

#[test]
fn an_end_of_stream_behind_the_bytes_is_no_byte_of_them() {
    let ended = target(TARGET_SEQ + 1);
    assert_eq!(ACCOUNT.pushed_bytes(&ended), ACCOUNT.redirected_bytes);
    let all = source(SOURCE_SEQ, SOURCE_SEQ + 1);
    assert!(ACCOUNT.has_all_before_end(&all));
    let one_missing = source(SOURCE_SEQ, SOURCE_SEQ + 2);
    assert!(!ACCOUNT.has_all_before_end(&one_missing));
}

#[test]
fn only_a_source_that_was_read_empty_can_be_put_back() {
    let half_closed = Inspection {
        // BPF_TCP_CLOSE_WAIT
        state: 8,
        ..source(SOURCE_SEQ, SOURCE_SEQ)
    };
    for (seen, expected) in [
        (source(SOURCE_SEQ, SOURCE_SEQ), Source::Drained),
        (source(SOURCE_SEQ, SOURCE_SEQ + 1), Source::HasBytes),
        (half_closed, Source::NotEstablished),
        (source(SOURCE_SEQ + 1, SOURCE_SEQ + 1), Source::AtEnd),
        (source(SOURCE_SEQ + 2, SOURCE_SEQ + 2), Source::Diverged),
        (source(SOURCE_SEQ - 1, SOURCE_SEQ), Source::Diverged),
    ] {
        assert_eq!(ACCOUNT.source(&seen), expected, "{seen:?}");
    }
}

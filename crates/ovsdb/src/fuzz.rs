//! Entry for fuzzing: bytes from a server, to a session in each of its stages.

use serde_json::json;
use weir_time::Time;

use crate::replica::Selection;
use crate::session::{Config, Session};
use crate::transaction::Transaction;

/// Feeds `data` to a session. The first byte chooses how far the session is, the second in what portions
/// it receives the rest. Neither may it panic nor report more than it was told.
pub fn run(data: &[u8]) {
    let [stage, portion, data @ ..] = data else { return };
    let now = Time(0);
    let mut session = Session::new(Config::new("D", Selection::new().all("T")).with_lock("l"), now);
    session.connecting(now);
    session.connected(now);
    let schema = json!({"name": "D", "tables": {"T": {"columns": {
        "n": {"type": "integer"}, "r": {"type": "real"}, "b": {"type": "boolean"},
        "s": {"type": {"key": "string", "min": 0, "max": "unlimited"}},
        "m": {"type": {"key": "string", "value": "uuid", "min": 0, "max": "unlimited"}},
    }}}});
    let zero = "00000000-0000-0000-0000-000000000000";
    // The ids are those of the requests in the order in which a session makes them.
    let script = [
        json!({"id": 1, "result": schema, "error": null}),
        json!({"id": 2, "result": {"locked": true}, "error": null}),
        json!({"id": 3, "result": [false, zero, {"T": {zero: {"initial": {"s": ["set", ["a", "b"]]}}}}], "error": null}),
    ];
    for message in script.iter().take(usize::from(stage % 4)) {
        session.received(now, message.to_string().as_bytes());
    }
    let mut transaction = Transaction::new();
    transaction.insert("T", Vec::new());
    // In the earlier stages it is refused, which is as well.
    let _ = session.transact(&transaction);
    for part in data.chunks(usize::from(*portion).max(1)) {
        session.received(now, part);
    }
    while let Some(event) = session.poll_event() {
        let _ = format!("{event:?}");
    }
    if session.is_synced() {
        for row in session.replica().rows("T") {
            assert_eq!(row.table(), "T");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn arbitrary_messages_do_no_harm(
            stage in any::<u8>(),
            portion in any::<u8>(),
            text in r#"(\{"(id|method)":("update3"|"lock"|[1-5]),"(params|result)":\[?("D"|true|null),"[0-9a-f]{8}(-0000){3}-000000000000",\{"T":\{("[a-z]{0,3}":[0-9\[\]{}"]{0,5}){0,2}\}\}\]?,"(id|error)":null\}){1,4}"#,
        ) {
            let mut data = vec![stage, portion];
            data.extend_from_slice(text.as_bytes());
            super::run(&data);
        }

        #[test]
        fn arbitrary_bytes_do_no_harm(data in prop::collection::vec(any::<u8>(), 0..100)) {
            super::run(&data);
        }
    }
}

//! The messages of JSON-RPC 1.0 as OVSDB uses it (RFC 7047 section 4).

use serde_json::{Map, Value, json};

pub use crate::framing::{FrameError, Framer, Limits};
use crate::types::describe;

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A call that wants a reply.
    Request {
        /// Name of the method.
        method: String,
        /// Parameters, by convention an array.
        params: Value,
        /// Returned in the reply.
        id: Value,
    },
    /// A call that wants none.
    Notification {
        /// Name of the method.
        method: String,
        /// Parameters.
        params: Value,
    },
    /// The answer to a request.
    Reply {
        /// The result, or the error.
        result: Result<Value, Value>,
        /// That of the request.
        id: Value,
    },
}

impl Message {
    /// A request.
    pub fn request(method: &str, params: Value, id: u64) -> Message {
        Message::Request { method: method.to_owned(), params, id: id.into() }
    }

    /// Reads a message from a JSON object.
    pub fn from_object(mut members: Map<String, Value>) -> Result<Message, FrameError> {
        let mut take = |name| members.remove(name).unwrap_or(Value::Null);
        let (method, params, id, result, error) =
            (take("method"), take("params"), take("id"), take("result"), take("error"));
        match (method, id, error) {
            (Value::String(method), Value::Null, _) => Ok(Message::Notification { method, params }),
            (Value::String(method), id, _) => Ok(Message::Request { method, params, id }),
            (Value::Null, Value::Null, _) => {
                Err(FrameError::Message("neither a method nor the id of a request".to_owned()))
            }
            (Value::Null, id, Value::Null) => Ok(Message::Reply { result: Ok(result), id }),
            (Value::Null, id, error) => Ok(Message::Reply { result: Err(error), id }),
            (method, ..) => Err(FrameError::Message(format!("{} is not the name of a method", describe(&method)))),
        }
    }

    /// The JSON form.
    pub fn to_json(&self) -> Value {
        match self {
            Message::Request { method, params, id } => json!({"method": method, "params": params, "id": id}),
            Message::Notification { method, params } => json!({"method": method, "params": params, "id": null}),
            Message::Reply { result: Ok(result), id } => json!({"result": result, "error": null, "id": id}),
            Message::Reply { result: Err(error), id } => json!({"result": null, "error": error, "id": id}),
        }
    }

    /// Appends the message to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.to_json().to_string().as_bytes());
    }

    /// The reply to an `echo` request; none for anything else.
    pub fn echo_reply(&self) -> Option<Message> {
        match self {
            Message::Request { method, params, id } if method == "echo" => {
                Some(Message::Reply { result: Ok(params.clone()), id: id.clone() })
            }
            _ => None,
        }
    }
}

impl Framer {
    /// The next whole message, if there is one. After an error the stream is of no further use.
    pub fn next_message(&mut self) -> Result<Option<Message>, FrameError> {
        self.next_object()?.map(Message::from_object).transpose()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(framer: &mut Framer) -> Result<Vec<Message>, FrameError> {
        std::iter::from_fn(|| framer.next_message().transpose()).collect()
    }

    fn of(text: &str) -> Result<Vec<Message>, FrameError> {
        let mut framer = Framer::new(Limits { size: 1000, depth: 8 });
        framer.push(text.as_bytes());
        all(&mut framer)
    }

    #[test]
    fn messages_follow_each_other_without_delimiters() {
        let messages = of(r#"{"id":1,"result":[{"x":"}\"{"}],"error":null}
            {"method":"echo","params":["a"],"id":"echo"}{"method":"update","params":[],"id":null}{"id":4,"error":"no"}"#);
        let messages = messages.unwrap();
        assert_eq!(messages[0], Message::Reply { result: Ok(json!([{"x": "}\"{"}])), id: json!(1) });
        let reply = Message::Reply { result: Ok(json!(["a"])), id: json!("echo") };
        assert_eq!(messages[1].echo_reply(), Some(reply));
        assert_eq!(messages[2], Message::Notification { method: "update".to_owned(), params: json!([]) });
        assert_eq!(messages[3], Message::Reply { result: Err(json!("no")), id: json!(4) });
    }

    #[test]
    fn what_cannot_become_a_message_is_refused_at_once() {
        let garbage = |text: &str, offset| {
            let Err(FrameError::Garbage { offset: at, .. }) = of(text) else { panic!("{text}: {:?}", of(text)) };
            assert_eq!(at, offset, "{text}");
        };
        garbage("HTTP/1.1 400", 0);
        garbage("[]", 0);
        garbage(r#"{"id":1,"result":0} x"#, 20);
        garbage("{\"a\":\"\n", 6);
        garbage("{\"a\": \u{1}", 6);
        garbage("{'a'", 1);
        assert!(matches!(of("{\"a\"}"), Err(FrameError::Json(_))));
        assert!(matches!(of("{\"a\":[}"), Ok(m) if m.is_empty()));
        assert!(matches!(of("{\"a\":[}]"), Err(FrameError::Json(_))));
        assert!(matches!(of("{}"), Err(FrameError::Message(_))));
        assert!(matches!(of("{\"method\":5,\"id\":1}"), Err(FrameError::Message(_))));
        assert_eq!(of(r#"{"a":[[[[[[[["#), Err(FrameError::TooDeep(8)));
        assert_eq!(of(&format!("{{\"a\":\"{}", "x".repeat(1000))), Err(FrameError::TooLarge(1000)));
        assert_eq!(of(&format!("{{\"a\":\"{}\"}}", "x".repeat(1000))), Err(FrameError::TooLarge(1000)));
        // Whitespace between messages is no message, however much there is.
        assert_eq!(of(&" ".repeat(2000)), Ok(Vec::new()));
    }

    #[test]
    fn offsets_count_from_the_beginning_of_the_stream() {
        let mut framer = Framer::default();
        let message = r#"{"method":"m","params":[],"id":null}"#;
        for _ in 0..10 {
            framer.push(message.as_bytes());
            assert_eq!(all(&mut framer).unwrap().len(), 1);
            assert_eq!(framer.pending(), 0);
        }
        framer.push(b"!");
        let offset = 10 * message.len() as u64;
        assert_eq!(framer.next_message(), Err(FrameError::Garbage { byte: b'!', offset }));
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    fn message() -> impl Strategy<Value = Message> {
        let not_null = |v: Value| if v.is_null() { json!(0) } else { v };
        (0..4, any::<String>(), json_value(), json_value()).prop_map(move |(kind, method, a, b)| match kind {
            0 => Message::Request { method, params: a, id: not_null(b) },
            1 => Message::Notification { method, params: a },
            2 => Message::Reply { result: Ok(a), id: not_null(b) },
            _ => Message::Reply { result: Err(not_null(a)), id: not_null(b) },
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn a_stream_is_the_same_however_it_is_cut(messages in prop::collection::vec(message(), 1..4), step in 1usize..40) {
            let mut stream = Vec::new();
            for message in &messages {
                message.emit(&mut stream);
            }
            for cut in [1, step, stream.len()] {
                let (mut framer, mut out) = (Framer::default(), Vec::new());
                for part in stream.chunks(cut) {
                    framer.push(part);
                    out.extend(all(&mut framer).unwrap());
                }
                prop_assert_eq!(&out, &messages);
                prop_assert_eq!(framer.pending(), 0);
            }
        }

        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 1usize..50) {
            let mut framer = Framer::new(Limits { size: 100, depth: 4 });
            for part in bytes.chunks(cut) {
                framer.push(part);
                if all(&mut framer).is_err() {
                    break;
                }
            }
        }

        #[test]
        fn text_that_looks_like_json_does_no_harm(text in r#"(\{?("[a-z]{0,3}\\?"|[\[\]{}:,]|null|-?[0-9]{1,3}){0,12}\}?){0,3}"#) {
            let whole = of(&text);
            let mut framer = Framer::new(Limits { size: 1000, depth: 8 });
            let mut parts = Ok(Vec::new());
            for byte in text.bytes() {
                framer.push(&[byte]);
                match (all(&mut framer), &mut parts) {
                    (Ok(more), Ok(list)) => list.extend(more),
                    (Err(error), Ok(_)) => parts = Err(error),
                    (_, Err(_)) => break,
                }
            }
            prop_assert_eq!(whole, parts);
        }
    }
}

//! The JSON-RPC 1.0 messages of the control socket, without I/O.

use ovsdb::framing::{FrameError, Framer, Limits};
use serde_json::{Map, Value, json};

/// The longest request that a server takes: a frame of 64 KiB in hexadecimal fits many times over.
pub const MAX_REQUEST: usize = 4 << 20;

/// Cuts the stream of a peer that may send messages of up to `size` bytes.
pub fn framer(size: usize) -> Framer {
    Framer::new(Limits { size, ..Limits::default() })
}

/// A client's request.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Name of the command.
    pub method: String,
    /// Its arguments; a command takes strings only, see [`Request::arguments`].
    pub params: Vec<Value>,
    /// To be sent back with the reply.
    pub id: Value,
}

impl Request {
    /// A request with string arguments.
    pub fn new(method: &str, arguments: &[String]) -> Request {
        let params = arguments.iter().cloned().map(Value::String).collect();
        Request { method: method.into(), params, id: Value::from(0) }
    }

    /// The request in `message`.
    pub fn parse(mut message: Map<String, Value>) -> Result<Request, FrameError> {
        let wrong = |what: &str| FrameError::Message(what.to_string());
        let method = match message.remove("method") {
            Some(Value::String(method)) => method,
            Some(_) => return Err(wrong("\"method\" is not a string")),
            None => return Err(wrong("a request has a \"method\"")),
        };
        let params = match message.remove("params") {
            Some(Value::Array(params)) => params,
            _ => return Err(wrong("a request has \"params\", an array")),
        };
        match message.remove("id") {
            None | Some(Value::Null) => Err(wrong("a request has an \"id\", notifications are not taken")),
            Some(id) => Ok(Request { method, params, id }),
        }
    }

    /// The arguments, unless one is not a string.
    pub fn arguments(&self) -> Option<Vec<String>> {
        self.params.iter().map(|p| p.as_str().map(str::to_owned)).collect()
    }

    /// The request's bytes.
    pub fn encode(&self) -> Vec<u8> {
        json!({ "method": self.method, "params": self.params, "id": self.id }).to_string().into_bytes()
    }
}

/// The method of the notifications that come before the reply of a command that tells things as they happen.
pub const PIECE: &str = "piece";

/// The bytes of such a notification.
pub fn encode_piece(piece: &str) -> Vec<u8> {
    json!({ "method": PIECE, "params": [piece], "id": Value::Null }).to_string().into_bytes()
}

/// The text of such a notification; `None` where the message is something else.
pub fn piece(message: &Map<String, Value>) -> Option<&str> {
    let is_piece = message.get("method").and_then(Value::as_str) == Some(PIECE);
    message.get("params").filter(|_| is_piece)?.get(0)?.as_str()
}

/// The bytes of a reply to request `id`. As in OVS, a text that is not empty ends with a line feed.
pub fn encode_reply(id: &Value, outcome: Result<String, String>) -> Vec<u8> {
    let line = |mut text: String| {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        Value::String(text)
    };
    let (result, error) = match outcome {
        Ok(text) => (line(text), Value::Null),
        Err(text) => (Value::Null, line(text)),
    };
    json!({ "result": result, "error": error, "id": id }).to_string().into_bytes()
}

/// A reply to request `id` whose result comes in pieces. Together, what its methods return is what [`encode_reply`]
/// returns for the whole text.
pub struct ReplyEncoder {
    id: Value,
    /// How the text ends so far; `None` while it is empty.
    last: Option<char>,
}

impl ReplyEncoder {
    /// The beginning of a reply.
    pub fn new(id: Value) -> (ReplyEncoder, Vec<u8>) {
        (ReplyEncoder { id, last: None }, b"{\"result\":\"".to_vec())
    }

    /// Appends a piece of the result to `out`.
    pub fn push(&mut self, piece: &str, out: &mut Vec<u8>) {
        let start = out.len();
        // The quotes of a string of its own are taken away again.
        if serde_json::to_writer(&mut *out, piece).is_ok() {
            out.pop();
            out.remove(start);
        }
        self.last = piece.chars().next_back().or(self.last);
    }

    /// Appends the end of the reply.
    pub fn finish(self, out: &mut Vec<u8>) {
        if self.last.is_some_and(|last| last != '\n') {
            out.extend_from_slice(b"\\n");
        }
        out.extend_from_slice(format!("\",\"error\":null,\"id\":{}}}", self.id).as_bytes());
    }
}

/// The outcome in a reply: the command's text or its error.
pub fn parse_reply(mut message: Map<String, Value>) -> Result<Result<String, String>, FrameError> {
    match (message.remove("result"), message.remove("error")) {
        (Some(Value::String(text)), None | Some(Value::Null)) => Ok(Ok(text)),
        (None | Some(Value::Null), Some(Value::String(text))) => Ok(Err(text)),
        _ => Err(FrameError::Message("a reply has a string as \"result\" or as \"error\"".into())),
    }
}

/// Entry point for fuzzing: any bytes, in pieces whose size the first byte chooses.
pub fn fuzz(data: &[u8]) {
    let Some((&size, stream)) = data.split_first() else { return };
    let mut framer = framer(1 << 16);
    for bytes in stream.chunks(usize::from(size).max(1)) {
        framer.push(bytes);
        loop {
            match framer.next_object() {
                Ok(Some(message)) => {
                    if let Ok(request) = Request::parse(message.clone()) {
                        let _ = request.arguments();
                    }
                    let _ = piece(&message);
                    let _ = parse_reply(message);
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn objects(framer: &mut Framer) -> Vec<Map<String, Value>> {
        std::iter::from_fn(|| framer.next_object().unwrap()).collect()
    }

    #[test]
    fn deep_nesting_is_an_error_not_a_stack_overflow() {
        let mut framer = framer(1 << 20);
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        framer.push(deep.as_bytes());
        assert!(matches!(framer.next_object(), Err(FrameError::TooDeep(_))));
    }

    #[test]
    fn pieces_are_told_from_replies() {
        let parse = |bytes: &[u8]| serde_json::from_slice::<Map<String, Value>>(bytes).unwrap();
        assert_eq!(piece(&parse(&encode_piece("a \"b\"\n"))), Some("a \"b\"\n"));
        assert_eq!(piece(&parse(&encode_reply(&Value::from(1), Ok("x".into())))), None);
        for other in [r#"{"method":"piece","params":[1]}"#, r#"{"method":"piece"}"#, r#"{"method":"x","params":["y"]}"#]
        {
            assert_eq!(piece(&parse(other.as_bytes())), None, "{other}");
        }
    }

    #[test]
    fn request_needs_method_params_and_id() {
        let parse = |text: &str| Request::parse(serde_json::from_str(text).unwrap());
        assert!(parse(r#"{"method":"x","params":[],"id":7}"#).is_ok());
        for bad in [
            r#"{"params":[],"id":7}"#,
            r#"{"method":1,"params":[],"id":7}"#,
            r#"{"method":"x","params":{},"id":7}"#,
            r#"{"method":"x","params":[],"id":null}"#,
            r#"{"method":"x","params":[]}"#,
        ] {
            assert!(matches!(parse(bad), Err(FrameError::Message(_))), "{bad}");
        }
        assert_eq!(parse(r#"{"method":"x","params":["a",1],"id":7}"#).unwrap().arguments(), None);
    }

    #[test]
    fn reply_ends_with_a_line_feed() {
        let outcome = |bytes: Vec<u8>| parse_reply(serde_json::from_slice(&bytes).unwrap()).unwrap();
        let id = Value::from("x");
        assert_eq!(outcome(encode_reply(&id, Ok("a".into()))), Ok("a\n".into()));
        assert_eq!(outcome(encode_reply(&id, Ok("".into()))), Ok("".into()));
        assert_eq!(outcome(encode_reply(&id, Err("b\n".into()))), Err("b\n".into()));
    }

    proptest! {
        #[test]
        fn a_reply_in_pieces_says_what_a_whole_one_does(pieces in prop::collection::vec(".{0,3}\n?", 0..6)) {
            let id = Value::from("x\"");
            let (mut encoder, mut bytes) = ReplyEncoder::new(id.clone());
            pieces.iter().for_each(|piece| encoder.push(piece, &mut bytes));
            encoder.finish(&mut bytes);
            let parse = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
            prop_assert_eq!(parse(&bytes), parse(&encode_reply(&id, Ok(pieces.concat()))));
        }

        #[test]
        fn any_request_survives_any_cut(
            method in ".*", args in prop::collection::vec(".*", 0..4), piece in 1usize..9, many in 1usize..4
        ) {
            let request = Request::new(&method, &args);
            let mut framer = framer(MAX_REQUEST);
            let mut got = Vec::new();
            for bytes in request.encode().repeat(many).chunks(piece) {
                framer.push(bytes);
                got.extend(objects(&mut framer));
            }
            prop_assert_eq!(got.len(), many);
            for message in got {
                prop_assert_eq!(&Request::parse(message).unwrap(), &request);
            }
        }

        #[test]
        fn any_bytes_are_taken(data in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz(&data);
        }

        #[test]
        fn json_like_bytes_are_taken(data in "[0-9]([{}\\[\\]\",:a0\\\\ ]|\"method\"|\"params\"|\"id\"){0,40}") {
            fuzz(data.as_bytes());
        }
    }
}

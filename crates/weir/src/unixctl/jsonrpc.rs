//! JSON-RPC 1.0 messages on a byte stream, without I/O.

use serde_json::{Map, Value, json};

/// The longest request that a server takes: a frame of 64 KiB in hexadecimal fits many times over.
pub const MAX_REQUEST: usize = 4 << 20;

/// What is wrong with a peer's bytes. The stream cannot be used any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are not JSON.
    #[error("malformed JSON: {0}")]
    Syntax(String),
    /// JSON, but not the message that is expected here.
    #[error("unexpected message: {0}")]
    Message(String),
    /// A message is longer than the limit.
    #[error("message of more than {limit} bytes")]
    TooLong {
        /// Bytes.
        limit: usize,
    },
}

/// Cuts a stream of bytes into JSON objects. Each byte is looked at once, however the stream arrives.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// How far the scan has come in `buffer`.
    scanned: usize,
    /// Open brackets and braces.
    depth: usize,
    in_string: bool,
    escaped: bool,
    limit: usize,
}

impl Decoder {
    /// A decoder that takes messages of up to `limit` bytes.
    pub fn new(limit: usize) -> Decoder {
        Decoder { buffer: Vec::new(), scanned: 0, depth: 0, in_string: false, escaped: false, limit }
    }

    /// Adds what was received.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes the next whole message; `None` until more bytes arrive.
    pub fn next_message(&mut self) -> Result<Option<Map<String, Value>>, Error> {
        if self.depth == 0 && !self.skip_to_object()? {
            return Ok(None);
        }
        while let Some(&byte) = self.buffer.get(self.scanned) {
            self.scanned += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return self.take().map(Some);
                    }
                }
                _ => {}
            }
        }
        if self.buffer.len() > self.limit {
            return Err(Error::TooLong { limit: self.limit });
        }
        Ok(None)
    }

    /// Whether a message has begun and not ended.
    pub fn is_partial(&self) -> bool {
        self.depth > 0
    }

    /// Drops white space before a message. Whether an object starts.
    fn skip_to_object(&mut self) -> Result<bool, Error> {
        let blank = self.buffer.iter().take_while(|b| b.is_ascii_whitespace()).count();
        self.buffer.drain(..blank);
        self.scanned = 0;
        match self.buffer.first() {
            None => Ok(false),
            Some(b'{') => Ok(true),
            Some(&other) => Err(Error::Syntax(format!("expected '{{', got {:?}", char::from(other)))),
        }
    }

    fn take(&mut self) -> Result<Map<String, Value>, Error> {
        if self.scanned > self.limit {
            return Err(Error::TooLong { limit: self.limit });
        }
        let message = serde_json::from_slice(&self.buffer[..self.scanned]);
        self.buffer.drain(..self.scanned);
        self.scanned = 0;
        // What a long message took is not kept for as long as the connection is.
        self.buffer.shrink_to(1 << 16);
        message.map_err(|e| Error::Syntax(e.to_string()))
    }
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
    pub fn parse(mut message: Map<String, Value>) -> Result<Request, Error> {
        let wrong = |what: &str| Error::Message(what.to_string());
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

/// The outcome in a reply: the command's text or its error.
pub fn parse_reply(mut message: Map<String, Value>) -> Result<Result<String, String>, Error> {
    match (message.remove("result"), message.remove("error")) {
        (Some(Value::String(text)), None | Some(Value::Null)) => Ok(Ok(text)),
        (None | Some(Value::Null), Some(Value::String(text))) => Ok(Err(text)),
        _ => Err(Error::Message("a reply has a string as \"result\" or as \"error\"".into())),
    }
}

/// Entry point for fuzzing: any bytes, in pieces whose size the first byte chooses.
pub fn fuzz(data: &[u8]) {
    let Some((&piece, stream)) = data.split_first() else { return };
    let mut decoder = Decoder::new(1 << 16);
    for bytes in stream.chunks(usize::from(piece).max(1)) {
        decoder.push(bytes);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => {
                    if let Ok(request) = Request::parse(message.clone()) {
                        let _ = request.arguments();
                    }
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

    fn decode_all(decoder: &mut Decoder) -> Vec<Map<String, Value>> {
        std::iter::from_fn(|| decoder.next_message().unwrap()).collect()
    }

    #[test]
    fn messages_need_no_framing() {
        let mut decoder = Decoder::new(1000);
        decoder.push(b" {\"a\":\"}{\\\"\"}{\"b\":[{}]}\n{\"c\"");
        let got = decode_all(&mut decoder);
        assert_eq!(got.len(), 2);
        assert_eq!(got[0]["a"], "}{\"");
        assert!(decoder.is_partial());
        decoder.push(b":1}");
        assert_eq!(decode_all(&mut decoder)[0]["c"], 1);
        assert!(!decoder.is_partial());
    }

    #[test]
    fn garbage_is_an_error() {
        for bytes in [&b"x"[..], b"[1]", b"{]", b"{\"a\" 1}", b"\"", b"{\"\xff\":1}"] {
            let mut decoder = Decoder::new(100);
            decoder.push(bytes);
            assert!(matches!(decoder.next_message(), Err(Error::Syntax(_))), "{bytes:?}");
        }
    }

    #[test]
    fn deep_nesting_is_an_error_not_a_stack_overflow() {
        let mut decoder = Decoder::new(1 << 20);
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        decoder.push(deep.as_bytes());
        assert!(matches!(decoder.next_message(), Err(Error::Syntax(_))));
    }

    #[test]
    fn a_message_has_a_limit() {
        let mut decoder = Decoder::new(100);
        decoder.push(b"{\"a\":\"");
        decoder.push(&[b'x'; 200]);
        assert_eq!(decoder.next_message(), Err(Error::TooLong { limit: 100 }));
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
            assert!(matches!(parse(bad), Err(Error::Message(_))), "{bad}");
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
        fn any_request_survives_any_cut(
            method in ".*", args in prop::collection::vec(".*", 0..4), piece in 1usize..9, many in 1usize..4
        ) {
            let request = Request::new(&method, &args);
            let mut decoder = Decoder::new(MAX_REQUEST);
            let mut got = Vec::new();
            for bytes in request.encode().repeat(many).chunks(piece) {
                decoder.push(bytes);
                got.extend(decode_all(&mut decoder));
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

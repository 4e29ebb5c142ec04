//! What a tap is asked for.

/// The longest snap length, which is that of libpcap.
pub const MAX_SNAP_LENGTH: u32 = 262_144;

/// The least snap length: an Ethernet header.
const MIN_SNAP_LENGTH: u32 = 14;

/// The longest filter, as of ingress filters: the time that libpcap takes grows with the third power of it.
pub const MAX_FILTER: usize = ingress::rule::MAX_EXPRESSION;

/// Most ports that are named.
const MAX_PORTS: usize = 4096;

/// The rate of a log of drops where none is given, in packets per second.
pub const RATE_OF_DROPS: u32 = 100;

/// How a tap is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A line for each packet.
    #[default]
    Text,
    /// A JSON object for each packet, in a line of its own.
    Json,
    /// A capture file.
    Pcapng,
}

impl Format {
    /// The formats with their names.
    const ALL: [(&str, Format); 3] = [("text", Format::Text), ("json", Format::Json), ("pcapng", Format::Pcapng)];
}

/// What a tap is asked for: the arguments of `weir/tap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapRequest {
    /// The ports, by name; none: all.
    pub ports: Vec<String>,
    /// The filter, as text; empty: every packet.
    pub filter: String,
    /// Words of which it is not known yet whether they name ports or are the filter.
    pub words: Vec<String>,
    /// Packets that come in.
    pub received: bool,
    /// Packets that go out.
    pub sent: bool,
    /// Only packets that are dropped.
    pub drops_only: bool,
    /// After how many packets it ends.
    pub count: Option<u64>,
    /// Most bytes of a frame.
    pub snap_length: u32,
    /// Most packets in a second.
    pub rate: Option<u32>,
    /// How it is shown.
    pub format: Format,
    /// Only look whether this could be done.
    pub check: bool,
}

impl Default for TapRequest {
    fn default() -> TapRequest {
        TapRequest {
            ports: Vec::new(),
            filter: String::new(),
            words: Vec::new(),
            received: true,
            sent: true,
            drops_only: false,
            count: None,
            snap_length: MAX_SNAP_LENGTH,
            rate: None,
            format: Format::default(),
            check: false,
        }
    }
}

impl TapRequest {
    /// Reads the arguments of `weir/tap`.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn parse(arguments: &[String]) -> Result<TapRequest, String> {
        let mut request = TapRequest::default();
        let mut rate = None;
        for argument in arguments {
            let (name, value) =
                argument.split_once('=').map_or((&argument[..], None), |(name, value)| (name, Some(value)));
            match (name, value) {
                // Behind the first word, whatever it is belongs to the filter: "len >= 5".
                _ if !request.words.is_empty() || !name.starts_with("--") => request.words.push(argument.clone()),
                ("--drops", None) => request.drops_only = true,
                ("--rx", None) => (request.received, request.sent) = (true, false),
                ("--tx", None) => (request.received, request.sent) = (false, true),
                ("--both", None) => (request.received, request.sent) = (true, true),
                ("--check", None) => request.check = true,
                ("--port", Some(port)) => request.ports.push(port.to_owned()),
                ("--filter", Some(filter)) => filter.clone_into(&mut request.filter),
                ("--count", Some(text)) => request.count = Some(number(name, text, 1, u64::MAX)?),
                ("--snaplen", Some(text)) => {
                    let (least, most) = (MIN_SNAP_LENGTH.into(), MAX_SNAP_LENGTH.into());
                    request.snap_length = number(name, text, least, most)? as u32;
                }
                ("--rate", Some(text)) => rate = Some(number(name, text, 0, u32::MAX.into())? as u32),
                ("--format", Some(text)) => {
                    let found = Format::ALL.iter().find(|(name, _)| *name == text);
                    request.format = found.ok_or_else(|| format!("{text}: a format is text, json or pcapng"))?.1;
                }
                _ => return Err(format!("{argument}: not an option of weir/tap; \"help weir/tap\" lists them")),
            }
        }
        if request.ports.len() + request.words.len() > MAX_PORTS {
            return Err(format!("a tap takes at most {MAX_PORTS} words"));
        }
        let is_log = request.drops_only && request.format != Format::Pcapng;
        let rate = rate.unwrap_or(if is_log { RATE_OF_DROPS } else { 0 });
        request.rate = (rate > 0).then_some(rate);
        Ok(request)
    }

    /// Tells ports from the filter: words are ports as long as they name some, and the rest is the filter.
    ///
    /// # Errors
    /// A port that is not there, or a filter that is too long or there twice.
    pub fn settle(&mut self, is_port: impl Fn(&str) -> bool) -> Result<(), String> {
        let words = std::mem::take(&mut self.words);
        let named = words.iter().take_while(|word| is_port(word)).count();
        self.ports.extend_from_slice(&words[..named]);
        let rest = words[named..].join(" ");
        if !rest.is_empty() && !self.filter.is_empty() {
            return Err(format!("{:?} and {rest:?}: a tap has one filter", self.filter));
        }
        if !rest.is_empty() {
            self.filter = rest;
        }
        if let Some(unknown) = self.ports.iter().find(|port| !is_port(port)) {
            return Err(format!("{unknown}: no port has this name; \"weir ports\" lists them"));
        }
        if self.filter.len() > MAX_FILTER {
            return Err(format!("the filter is longer than {MAX_FILTER} bytes"));
        }
        self.ports.sort();
        self.ports.dedup();
        Ok(())
    }
}

fn number(name: &str, text: &str, least: u64, most: u64) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("{name}={text}: this takes a number from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(arguments: &[&str]) -> Result<TapRequest, String> {
        let arguments: Vec<_> = arguments.iter().map(|text| text.to_string()).collect();
        let mut request = TapRequest::parse(&arguments)?;
        request.settle(|word| ["p1", "p2", "br0"].contains(&word))?;
        Ok(request)
    }

    #[test]
    fn ports_come_before_the_filter() {
        let request = parse(&["--rx", "--count=5", "p2", "p1", "p2", "tcp", "port", "80"]).unwrap();
        assert_eq!((&request.ports[..], &request.filter[..]), (&["p1".to_owned(), "p2".to_owned()][..], "tcp port 80"));
        assert_eq!((request.received, request.sent, request.count), (true, false, Some(5)));
        // What looks like an option is none behind the first word.
        assert_eq!(parse(&["len", "--count=5"]).unwrap().filter, "len --count=5");
        let request = parse(&["--port=p1", "--filter=flow:tcp,tp_dst=80"]).unwrap();
        assert_eq!((&request.ports[0][..], &request.filter[..]), ("p1", "flow:tcp,tp_dst=80"));
        assert_eq!(parse(&[]).unwrap(), TapRequest::default());
    }

    #[test]
    fn a_log_of_drops_is_limited_unless_told_otherwise() {
        let rate = |arguments: &[&str]| parse(arguments).unwrap().rate;
        assert_eq!(rate(&["--drops"]), Some(RATE_OF_DROPS));
        assert_eq!(rate(&["--drops", "--format=pcapng"]), None);
        assert_eq!(rate(&["--drops", "--rate=0"]), None);
        assert_eq!(rate(&["--rate=7", "p1"]), Some(7));
        assert_eq!(rate(&[]), None);
    }

    #[test]
    fn mistakes_are_named() {
        let long = "x".repeat(MAX_FILTER + 1);
        for (arguments, expected) in [
            (&["--drop"][..], "--drop: not an option of weir/tap"),
            (&["--count=0"], "--count=0: this takes a number from 1 to"),
            (&["--count=-1"], "--count=-1: this takes a number"),
            (&["--snaplen=13"], "--snaplen=13: this takes a number from 14 to 262144"),
            (&["--snaplen=99999999999999999999"], "--snaplen=99999999999999999999: this takes"),
            (&["--rate=4294967296"], "--rate=4294967296: this takes a number from 0 to 4294967295"),
            (&["--rate"], "--rate: not an option"),
            (&["--format=pcap"], "pcap: a format is text, json or pcapng"),
            (&["--port=p9"], "p9: no port has this name"),
            (&["--filter=tcp", "p1", "udp"], "\"tcp\" and \"udp\": a tap has one filter"),
            (&[&long], "the filter is longer than 4096 bytes"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let many = vec!["p1"; MAX_PORTS + 1];
        assert!(parse(&many).unwrap_err().contains("at most 4096 words"));
    }

    proptest! {
        #[test]
        fn no_arguments_panic(arguments in prop::collection::vec("(--)?(rx|count|snaplen|port|filter|é)?=?[0-9p=é]{0,5}", 0..5)) {
            if let Ok(mut request) = TapRequest::parse(&arguments) {
                let _ = request.settle(|word| word == "p1");
            }
        }
    }
}

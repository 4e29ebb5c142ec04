//! What may be written to a terminal, or to a log that is read at one.
//!
//! Control characters of C0 and C1 are commands for a terminal (ECMA-48), and those that change the direction of text (Unicode's Bidi_Control) make it
//! look like another one.

/// Whether a character does something to a terminal other than being shown.
fn is_command(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text of one line with a question mark for each character that is not shown.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_command(c) { '?' } else { c }).collect()
}

/// The same, but with its line feeds and tabs: a text of several lines.
pub fn printable_lines(text: &str) -> String {
    text.chars().map(|c| if is_command(c) && !matches!(c, '\n' | '\t') { '?' } else { c }).collect()
}

/// Appends a text as one line, with an escape for each character that is not shown, but for tabs.
pub fn escape_line(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push(c),
            c if is_command(c) && c.is_ascii() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if is_command(c) => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => out.push(c),
        }
    }
}

/// JSON with such characters escaped. Those of C0 are, by any writer of JSON; the others can only be in strings.
pub fn printable_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' => out.push(c),
            c if is_command(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_not_shown() {
        assert_eq!(printable("eth\x1b[2J\u{9b}1m\u{202e}x\n\t\x7fü"), "eth?[2J?1m?x???ü");
    }

    #[test]
    fn lines_stay_lines_on_a_terminal_and_become_one_in_a_log() {
        let text = "a\tb\r\nc\x1b[2J\u{9b}1m\u{202e}ü";
        assert_eq!(printable_lines(text), "a\tb?\nc?[2J?1m?ü");
        let mut line = String::new();
        escape_line(&mut line, text);
        assert_eq!(line, "a\tb\\r\\nc\\x1b[2J\\u{9b}1m\\u{202e}ü");
    }

    #[test]
    fn json_stays_the_same_json() {
        let value = serde_json::json!({ "name": "a\x1b\u{9b}\u{202e}\x7fü" });
        let text = printable_json(&serde_json::to_string_pretty(&value).unwrap());
        assert!(text.chars().all(|c| c == '\n' || !is_command(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}

//! What stands behind the `?` of a request: names and values, in the form of an HTML form (`application/x-www-form-urlencoded`, WHATWG URL
//! standard, section 5). The crate `form_urlencoded` decodes it: its rules are small, but not obvious.
//!
//! A request names a parameter once, and only those that its path has: a misspelt one would otherwise be taken for one that is not there.
//! The length of all is bounded by that of a request's head.

/// The parameters of a request. An empty value counts as none, as an empty field of a form is sent so.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query whose parameters have these names.
    pub fn parse(text: Option<&str>, names: &[&str]) -> Result<Query, String> {
        let mut found: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(text.unwrap_or_default().as_bytes()) {
            let (name, value) = (name.into_owned(), value.into_owned());
            if !names.contains(&name.as_str()) {
                let have = if names.is_empty() { "none".into() } else { names.join(", ") };
                return Err(format!("{name:?}: not a parameter of this path, which has: {have}"));
            }
            if found.iter().any(|(known, _)| *known == name) {
                return Err(format!("{name}: is there twice"));
            }
            found.push((name, value));
        }
        found.retain(|(_, value)| !value.is_empty());
        Ok(Query(found))
    }

    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The value of a parameter that is a number of this range; `usual` where it is not there.
    pub fn number(&self, name: &str, range: std::ops::RangeInclusive<u64>, usual: u64) -> Result<u64, String> {
        let Some(value) = self.get(name) else { return Ok(usual) };
        let number = value.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("{name}={value}: a number from {} to {} is expected", range.start(), range.end()))
    }

    /// Each parameter, as NAME=VALUE.
    pub fn words(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(name, value)| format!("{name}={value}"))
    }
}

/// Entry point for fuzzing: any query. Returns whether it is one.
pub fn fuzz(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let query = Query::parse(Some(text), &["text", "most"]);
    query.is_ok_and(|query| query.number("most", 1..=9, 1).is_ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_decoded() {
        let query = Query::parse(Some("text=a%2Bb+c%3Cscript%3E&most=7&bridge="), &["text", "most", "bridge"]).unwrap();
        assert_eq!(query.get("text"), Some("a+b c<script>"));
        assert_eq!((query.get("bridge"), query.number("most", 1..=9, 1)), (None, Ok(7)));
        assert_eq!(query.words().collect::<Vec<_>>(), ["text=a+b c<script>", "most=7"]);
        assert_eq!(Query::parse(None, &[]), Ok(Query::default()));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let parse = |text: &str| Query::parse(Some(text), &["most"]).and_then(|query| query.number("most", 1..=9, 1));
        for (text, says) in [
            ("mots=5", "\"mots\": not a parameter of this path, which has: most"),
            ("most=1&most=2", "most: is there twice"),
            ("most=0", "most=0: a number from 1 to 9"),
            ("most=-1", "from 1 to 9"),
            ("most=%00", "from 1 to 9"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(says), "{text}: {problem}");
        }
        assert!(Query::parse(Some("a"), &[]).unwrap_err().ends_with("has: none"));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_read_as_it_was(value in ".{1,40}") {
            let text: String = form_urlencoded::Serializer::new(String::new()).append_pair("text", &value).finish();
            let query = Query::parse(Some(&text), &["text"]).unwrap();
            prop_assert_eq!(query.get("text"), Some(value.as_str()));
        }

        #[test]
        fn any_bytes_are_judged(data in any::<Vec<u8>>()) {
            fuzz(&data);
        }
    }
}

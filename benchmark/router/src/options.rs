//! `--name value` pairs after a command's name.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use crate::Outcome;

/// The options of one command.
#[derive(Debug, Default)]
pub struct Options(BTreeMap<String, String>);

impl Options {
    /// The command and its options.
    ///
    /// # Errors
    /// When there is no command, or an option without a value.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Outcome<(String, Self)> {
        let mut parser = lexopt::Parser::from_args(arguments);
        let (mut command, mut options) = (None, BTreeMap::new());
        while let Some(argument) = parser.next()? {
            match argument {
                lexopt::Arg::Value(value) if command.is_none() => command = Some(value.string()?),
                lexopt::Arg::Long(name) => {
                    let name = name.to_owned();
                    options.insert(name, parser.value()?.string()?);
                }
                other => return Err(other.unexpected().into()),
            }
        }
        let command = command.ok_or("name a command: serve, echo, load, burst, encode or soak")?;
        Ok((command, Self(options)))
    }

    /// An option as text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// An option that must be there.
    ///
    /// # Errors
    /// When it is not.
    pub fn required(&self, name: &str) -> Outcome<&str> {
        self.text(name).ok_or_else(|| format!("--{name} is missing").into())
    }

    /// A number, or what stands for it when it is left out.
    ///
    /// # Errors
    /// When it is no number.
    pub fn number<T: FromStr>(&self, name: &str, default: T) -> Outcome<T> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("--{name} {text} is not a number that fits").into()),
        }
    }

    /// Seconds, with a fraction.
    ///
    /// # Errors
    /// When they are none.
    pub fn seconds(&self, name: &str, default: f64) -> Outcome<Duration> {
        Ok(Duration::try_from_secs_f64(self.number(name, default)?)?)
    }
}

trait Text {
    fn string(self) -> Outcome<String>;
}

impl Text for OsString {
    fn string(self) -> Outcome<String> {
        self.into_string().map_err(|text| format!("{} is not UTF-8", text.display()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Outcome<(String, Options)> {
        Options::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn options_have_values() {
        let (command, options) = parse("load --connections 32 --window=1.5").unwrap();
        assert_eq!(command, "load");
        assert_eq!(options.number("connections", 1).unwrap(), 32);
        assert_eq!(options.number("tokens", 128).unwrap(), 128);
        assert_eq!(options.seconds("window", 3.0).unwrap(), Duration::from_millis(1500));
        assert!(options.required("address").is_err());
    }

    #[test]
    fn what_is_not_an_option_is_refused() {
        for line in ["", "load more", "load --connections", "load -c 3"] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("load --connections many").unwrap().1.number("connections", 1).is_err());
    }
}

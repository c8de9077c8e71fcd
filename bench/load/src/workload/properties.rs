//! YCSB's property files and `name=value` settings.

use std::collections::BTreeMap;
use std::path::Path;

/// Names and values; a later one replaces an earlier one.
#[derive(Clone, Default, Debug)]
pub struct Properties(BTreeMap<String, String>);

impl Properties {
    /// What `-P` gives: `name=value`, or the path of a file (which may have a `=` in its name, if
    /// it is there).
    pub fn add(&mut self, given: &str) -> Result<(), String> {
        match given.split_once('=') {
            Some((name, value)) if !Path::new(given).exists() => {
                self.set(name.trim(), value.trim());
                Ok(())
            }
            _ => {
                let text = std::fs::read_to_string(given)
                    .map_err(|error| format!("the property file {given}: {error}"))?;
                self.add_text(&text)
            }
        }
    }

    fn add_text(&mut self, text: &str) -> Result<(), String> {
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with(['#', '!']) {
                continue;
            }
            let (name, value) = line
                .split_once(['=', ':'])
                .ok_or_else(|| format!("a property is name=value, not '{line}'"))?;
            self.set(name.trim(), value.trim());
        }
        Ok(())
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.into(), value.into());
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A value that parses as `T`, or the default.
    pub fn get<T: std::str::FromStr>(&self, name: &str, default: T) -> Result<T, String> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => text
                .parse()
                .map_err(|_| format!("the property {name} cannot be '{text}'")),
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

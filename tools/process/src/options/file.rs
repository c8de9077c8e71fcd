//! The configuration file: YAML, flattened to dotted paths, or lines of `name = value`, which
//! mongod reads as well.

use yaml_rust2::{Yaml, YamlLoader};

use super::{OptionError, OptionValue};

/// How a file names an option.
#[derive(Debug, PartialEq)]
pub(super) enum Key {
    /// By its path in YAML.
    Path(String),
    /// As on the command line.
    Name(String),
}

/// The values of a configuration file, in its order. As for mongod it is YAML if that makes a
/// mapping of it.
pub(super) fn read(text: &str, name: &str) -> Result<Vec<(Key, OptionValue)>, OptionError> {
    match YamlLoader::load_from_str(text).as_deref() {
        Ok([Yaml::String(_)]) => lines(text, name),
        // A comment behind a value is no YAML where there is no mapping.
        Err(_) if begins_with_a_line(text) => lines(text, name),
        _ => {
            let values = flatten(text, name)?.into_iter();
            Ok(values
                .map(|(path, value)| (Key::Path(path), value))
                .collect())
        }
    }
}

/// Whether the first line that is not empty is of the form `name = value`.
fn begins_with_a_line(text: &str) -> bool {
    let mut lines = text.lines().map(without_comment);
    let first = lines.find(|line| !line.is_empty());
    let name = first.and_then(|line| line.split_once('='));
    name.is_some_and(|(name, _)| name.trim().chars().all(|c| c.is_ascii_alphanumeric()))
}

fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

/// The values of a file of lines. `#` begins a comment.
fn lines(text: &str, name: &str) -> Result<Vec<(Key, OptionValue)>, OptionError> {
    let mut out = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = without_comment(line);
        if line.is_empty() {
            continue;
        }
        let Some((option, value)) = line.split_once('=') else {
            return Err(OptionError(format!(
                "Error parsing INI config file {name}: line {} is not of the form name = value",
                at + 1
            )));
        };
        let value = OptionValue::Text(value.trim().to_owned());
        out.push((Key::Name(option.trim().to_owned()), value));
    }
    Ok(out)
}

/// The values of a YAML file by dotted path, in the file's order.
fn flatten(text: &str, name: &str) -> Result<Vec<(String, OptionValue)>, OptionError> {
    let fail = |why: String| OptionError(format!("Error parsing YAML config file {name}: {why}"));
    let documents = YamlLoader::load_from_str(text).map_err(|error| fail(error.to_string()))?;
    let mut out = Vec::new();
    match documents.as_slice() {
        [] | [Yaml::Null] => Ok(out),
        [Yaml::Hash(root)] => {
            for (key, value) in root {
                walk(key, value, "", &mut out).map_err(fail)?;
            }
            Ok(out)
        }
        [_] => Err(fail("the top level is not a mapping".into())),
        _ => Err(fail("there is more than one document".into())),
    }
}

fn walk(
    key: &Yaml,
    value: &Yaml,
    prefix: &str,
    out: &mut Vec<(String, OptionValue)>,
) -> Result<(), String> {
    let Yaml::String(key) = key else {
        return Err(format!("a key below '{prefix}' is not a string"));
    };
    let path = if prefix.is_empty() {
        key.clone()
    } else {
        format!("{prefix}.{key}")
    };
    let given = match value {
        Yaml::Hash(map) => {
            for (key, value) in map {
                walk(key, value, &path, out)?;
            }
            return Ok(());
        }
        Yaml::Null => return Ok(()),
        Yaml::Boolean(value) => OptionValue::Switch(*value),
        Yaml::Integer(value) => OptionValue::Int(*value),
        Yaml::Real(text) => OptionValue::Double(
            text.parse()
                .map_err(|_| format!("'{path}' is not a number"))?,
        ),
        Yaml::String(text) => OptionValue::Text(text.clone()),
        Yaml::Array(_) | Yaml::Alias(_) | Yaml::BadValue => {
            return Err(format!(
                "'{path}' has a value of a kind that no option takes"
            ));
        }
    };
    out.push((path, given));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_options_as_the_command_line_does() {
        let name = |name: &str| Key::Name(name.into());
        let text = |text: &str| OptionValue::Text(text.into());
        assert_eq!(
            read(
                "# a node\ndbpath = /d # its data\nsetParameter = a=b\n",
                "c"
            )
            .unwrap(),
            [
                (name("dbpath"), text("/d")),
                (name("setParameter"), text("a=b"))
            ]
        );
        let path = Key::Path("net.port".into());
        assert_eq!(
            read("net:\n  port: 5\n", "c").unwrap(),
            [(path, OptionValue::Int(5))]
        );
        let error = read("port = 1\nnonsense\n", "c").unwrap_err();
        assert!(error.0.contains("line 2"), "{error}");
        assert!(read("- a\n", "c").is_err());
    }

    #[test]
    fn nested_mappings_become_dotted_paths() {
        let text =
            "storage:\n  dbPath: /d\n  journal:\n    commitIntervalMs: 50\nnet:\n  ipv6: true\n";
        assert_eq!(
            flatten(text, "c").unwrap(),
            vec![
                ("storage.dbPath".into(), OptionValue::Text("/d".into())),
                (
                    "storage.journal.commitIntervalMs".into(),
                    OptionValue::Int(50)
                ),
                ("net.ipv6".into(), OptionValue::Switch(true)),
            ]
        );
        assert_eq!(flatten("", "c").unwrap(), vec![]);
        assert!(flatten("- a\n", "c").is_err());
        assert!(flatten("a: [1, 2]\n", "c").is_err());
    }
}

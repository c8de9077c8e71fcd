//! The YAML configuration file, flattened to dotted paths.

use yaml_rust2::{Yaml, YamlLoader};

use super::Given;
use super::parse::OptionError;

/// The values of a configuration file by dotted path, in the file's order.
pub(super) fn flatten(text: &str, name: &str) -> Result<Vec<(String, Given)>, OptionError> {
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
    out: &mut Vec<(String, Given)>,
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
        Yaml::Boolean(value) => Given::Switch(*value),
        Yaml::Integer(value) => Given::Int(*value),
        Yaml::Real(text) => Given::Double(
            text.parse()
                .map_err(|_| format!("'{path}' is not a number"))?,
        ),
        Yaml::String(text) => Given::Text(text.clone()),
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
    fn nested_mappings_become_dotted_paths() {
        let text =
            "storage:\n  dbPath: /d\n  journal:\n    commitIntervalMs: 50\nnet:\n  ipv6: true\n";
        assert_eq!(
            flatten(text, "c").unwrap(),
            vec![
                ("storage.dbPath".into(), Given::Text("/d".into())),
                ("storage.journal.commitIntervalMs".into(), Given::Int(50)),
                ("net.ipv6".into(), Given::Switch(true)),
            ]
        );
        assert_eq!(flatten("", "c").unwrap(), vec![]);
        assert!(flatten("- a\n", "c").is_err());
        assert!(flatten("a: [1, 2]\n", "c").is_err());
    }
}

//! From arguments and file to the values of options, each found in the program's table.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};

use super::file::{Key, read};
use super::{OptionError, OptionSpec, OptionValue, Shape, Support};

/// What a program says of itself, and which options it has.
#[derive(Clone, Copy)]
pub struct Program {
    pub name: &'static str,
    pub about: &'static str,
    /// What `--version` prints.
    pub version: fn() -> String,
    pub options: &'static [OptionSpec],
}

/// What the arguments ask for.
pub enum Arguments {
    /// Print this text and end with success (`--help`, `--version`).
    Print(String),
    Run(Reader),
}

const VERSION: &str = "version";

/// The values given, read one by one with their ranges.
pub struct Reader {
    program: Program,
    given: BTreeMap<&'static str, Vec<OptionValue>>,
    argv: Vec<String>,
}

impl Program {
    /// Reads the arguments (the first is the program's name) and the file they name. An option
    /// that is refused by name ends the start.
    ///
    /// # Errors
    /// One line that names the option.
    pub fn read(self, argv: impl IntoIterator<Item = OsString>) -> Result<Arguments, OptionError> {
        let argv: Vec<OsString> = argv.into_iter().collect();
        let matches = match self.command().try_get_matches_from(&argv) {
            Ok(matches) => matches,
            Err(error) => return refuse(&error),
        };
        if matches.get_flag(VERSION) {
            return Ok(Arguments::Print((self.version)()));
        }
        let mut given: BTreeMap<&'static str, Vec<OptionValue>> = BTreeMap::new();
        if let Some(path) = matches.get_one::<String>("config") {
            let text = read_config(path)?;
            for (key, value) in read(&text, path)? {
                let (spec, value) = match key {
                    Key::Path(path) => self.find_path(path, value)?,
                    Key::Name(name) => self.find_name(&name, value)?,
                };
                given.entry(spec.name).or_default().push(value);
            }
        }
        for spec in self.options {
            let values: Vec<OptionValue> = match spec.shape {
                Shape::Switch if matches.get_flag(spec.name) => vec![OptionValue::Switch(true)],
                Shape::Switch => continue,
                Shape::Value | Shape::Repeated => match matches.get_many::<String>(spec.name) {
                    Some(values) => values
                        .map(|value| OptionValue::Text(value.clone()))
                        .collect(),
                    None => continue,
                },
            };
            // The command line wins over the file; setParameter adds to it.
            let slot = given.entry(spec.name).or_default();
            if spec.shape != Shape::Repeated {
                slot.clear();
            }
            slot.extend(values);
        }
        self.check_support(&given)?;
        let words = argv.iter().map(|word| word.to_string_lossy().into_owned());
        Ok(Arguments::Run(Reader {
            program: self,
            given,
            argv: words.collect(),
        }))
    }

    fn command(self) -> Command {
        let mut command = Command::new(self.name)
            .arg(
                Arg::new(VERSION)
                    .long(VERSION)
                    .action(ArgAction::SetTrue)
                    .help("Print the version"),
            )
            .about(self.about);
        for spec in self.options {
            let mut arg = Arg::new(spec.name).long(spec.name).help(spec.help);
            if spec.short != '\0' {
                arg = arg.short(spec.short);
            }
            arg = match spec.shape {
                Shape::Switch => arg.action(ArgAction::SetTrue),
                Shape::Value => arg
                    .action(ArgAction::Set)
                    .num_args(1)
                    .overrides_with(spec.name),
                Shape::Repeated => arg.action(ArgAction::Append).num_args(1),
            };
            if spec.name == "verbose" {
                arg = arg.num_args(0..=1).default_missing_value("1");
            }
            command = command.arg(arg.hide(spec.help.is_empty()));
        }
        command
    }

    fn find_path(
        self,
        path: String,
        value: OptionValue,
    ) -> Result<(&'static OptionSpec, OptionValue), OptionError> {
        if let Some(name) = path.strip_prefix("setParameter.") {
            let spec = self.spec("setParameter");
            return Ok((spec, OptionValue::Text(format!("{name}={}", text(&value)))));
        }
        let found = self
            .options
            .iter()
            .find(|spec| !spec.path.is_empty() && spec.path == path);
        let Some(spec) = found else {
            return Err(OptionError(format!("Unrecognized option: {path}")));
        };
        match (spec.shape, &value) {
            (Shape::Switch, OptionValue::Switch(_)) | (Shape::Value, _) => Ok((spec, value)),
            _ => Err(OptionError(format!(
                "{path} takes a boolean, not '{}'",
                text(&value)
            ))),
        }
    }

    /// An option of a file in the older form, which names it as the command line does.
    fn find_name(
        self,
        name: &str,
        value: OptionValue,
    ) -> Result<(&'static OptionSpec, OptionValue), OptionError> {
        let found = self.options.iter().find(|spec| spec.name == name);
        let Some(spec) = found.filter(|spec| spec.name != "config") else {
            return Err(OptionError(format!("Unrecognized option: {name}")));
        };
        match (spec.shape, text(&value).as_str()) {
            (Shape::Value | Shape::Repeated, _) => Ok((spec, value)),
            (Shape::Switch, "true") => Ok((spec, OptionValue::Switch(true))),
            (Shape::Switch, "false") => Ok((spec, OptionValue::Switch(false))),
            (Shape::Switch, other) => Err(OptionError(format!(
                "{name} takes true or false, not '{other}'"
            ))),
        }
    }

    fn spec(self, name: &str) -> &'static OptionSpec {
        self.options
            .iter()
            .find(|spec| spec.name == name)
            .expect("a name of the table")
    }

    fn check_support(
        self,
        given: &BTreeMap<&'static str, Vec<OptionValue>>,
    ) -> Result<(), OptionError> {
        for (name, values) in given {
            let spec = self.spec(name);
            match spec.support {
                Support::Yes => {}
                // A switch that the file turns off asks for nothing.
                Support::No(_)
                    if values
                        .iter()
                        .all(|value| *value == OptionValue::Switch(false)) => {}
                Support::No(why) => {
                    return Err(OptionError(format!("--{name} is not supported: {why}")));
                }
                Support::Only(allowed, why) => {
                    if let Some(value) = values.iter().find(|value| text(value) != allowed) {
                        let value = text(value);
                        return Err(OptionError(format!(
                            "--{name} {value} is not supported: {why}"
                        )));
                    }
                }
            }
        }
        Ok(())
    }
}

fn refuse(error: &clap::Error) -> Result<Arguments, OptionError> {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp => Ok(Arguments::Print(error.to_string())),
        _ => {
            let text = error.to_string();
            let line = text
                .lines()
                .next()
                .unwrap_or_default()
                .trim_start_matches("error: ");
            Err(OptionError(format!("Error parsing command line: {line}")))
        }
    }
}

#[allow(clippy::disallowed_methods)] // Before the runtime exists, on the main thread.
fn read_config(path: &str) -> Result<String, OptionError> {
    let bytes = std::fs::read(path)
        .map_err(|error| OptionError(format!("Error reading config file {path}: {error}")))?;
    String::from_utf8(bytes)
        .map_err(|_| OptionError(format!("Error reading config file {path}: it is not UTF-8")))
}

fn text(value: &OptionValue) -> String {
    match value {
        OptionValue::Switch(value) => value.to_string(),
        OptionValue::Int(value) => value.to_string(),
        OptionValue::Double(value) => value.to_string(),
        OptionValue::Text(value) => value.clone(),
    }
}

impl Reader {
    /// The arguments as they were given.
    pub fn argv(&self) -> &[String] {
        &self.argv
    }

    /// All values, for a program that brings some into another form.
    pub fn given_mut(&mut self) -> &mut BTreeMap<&'static str, Vec<OptionValue>> {
        &mut self.given
    }

    /// The last value of an option.
    pub fn last(&self, name: &str) -> Option<String> {
        self.given
            .get(name)
            .and_then(|values| values.last())
            .map(text)
    }

    /// Whether a switch is on.
    pub fn switch(&self, name: &str) -> bool {
        self.last(name).is_some_and(|value| value == "true")
    }

    /// A whole number within a range.
    ///
    /// # Errors
    /// One line that names option, value and range.
    pub fn int(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>, OptionError> {
        let Some(value) = self.last(name) else {
            return Ok(None);
        };
        match value.parse::<u64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ => Err(OptionError(format!(
                "Invalid value '{value}' for --{name}: expected a whole number from {min} to {max}"
            ))),
        }
    }

    /// `--setParameter`, in order.
    ///
    /// # Errors
    /// One line: a value is not of the form `name=value`.
    pub fn set_parameters(&self) -> Result<Vec<(String, String)>, OptionError> {
        let Some(values) = self.given.get("setParameter") else {
            return Ok(Vec::new());
        };
        let split = |value: &OptionValue| match text(value).split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_string(), value.to_string())),
            _ => Err(OptionError(format!(
                "Illegal option assignment '{}' for --setParameter: expected name=value",
                text(value)
            ))),
        };
        values.iter().map(split).collect()
    }

    /// The options in the configuration file's shape, numbers and booleans as such, as
    /// getCmdLineOpts answers.
    pub fn parsed(&self) -> Vec<(String, OptionValue)> {
        let mut out = Vec::new();
        for (name, values) in &self.given {
            let spec = self.program.spec(name);
            match (spec.shape, values.last()) {
                (_, None) => {}
                (Shape::Repeated, _) => {
                    for value in values {
                        if let Some((name, value)) = text(value).split_once('=') {
                            out.push((
                                format!("setParameter.{name}"),
                                OptionValue::Text(value.into()),
                            ));
                        }
                    }
                }
                (_, Some(value)) => {
                    let path = if spec.path.is_empty() {
                        spec.name
                    } else {
                        spec.path
                    };
                    out.push((path.to_string(), typed(value)));
                }
            }
        }
        out
    }
}

fn typed(value: &OptionValue) -> OptionValue {
    let OptionValue::Text(value) = value else {
        return value.clone();
    };
    if let Ok(number) = value.parse::<i64>() {
        return OptionValue::Int(number);
    }
    match value.parse::<f64>() {
        Ok(number) if number.is_finite() => OptionValue::Double(number),
        _ => OptionValue::Text(value.clone()),
    }
}

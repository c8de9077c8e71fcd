//! Rows of the tables of options that programs have.

/// What follows an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Nothing on the command line, a boolean in the file.
    Switch,
    /// One value.
    Value,
    /// A value that may be given more than once (`--setParameter name=value`).
    Repeated,
}

/// Whether Pinion acts on an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It does.
    Yes,
    /// It does not; the start stops with this reason rather than run without what was asked for.
    No(&'static str),
    /// mongod's option names a behaviour that Pinion always has, so only this value can be
    /// accepted.
    Only(&'static str, &'static str),
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// The name on the command line, without dashes.
    pub name: &'static str,
    /// A one-letter form, or `\0`.
    pub short: char,
    /// The dotted path in the YAML file, or an empty string where there is none.
    pub path: &'static str,
    pub shape: Shape,
    pub support: Support,
    pub help: &'static str,
}

/// An option that a program acts on.
pub const fn yes(
    name: &'static str,
    path: &'static str,
    shape: Shape,
    help: &'static str,
) -> OptionSpec {
    OptionSpec {
        name,
        short: '\0',
        path,
        shape,
        support: Support::Yes,
        help,
    }
}

/// An option that a program refuses by name, with the reason.
pub const fn no(
    name: &'static str,
    path: &'static str,
    shape: Shape,
    why: &'static str,
) -> OptionSpec {
    OptionSpec {
        name,
        short: '\0',
        path,
        shape,
        support: Support::No(why),
        help: "",
    }
}

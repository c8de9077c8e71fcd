//! `$fill`: window functions and additions for fields that are null or missing.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::Stage;
use super::densify::parse_paths;
use super::parse::push_addition;
use super::spec::{
    check_duplicates, missing_field, optional_document, optional_text, unknown_field, wrong_type,
};
use crate::error::{error, failed_to_parse};
use crate::expression::Variables;
use crate::value::{elements, is_empty, type_name};

/// The stage's parsed specification.
struct Fill<'a> {
    partition_by: Option<RawBsonRef<'a>>,
    partition_by_fields: Option<Vec<String>>,
    sort_by: Option<&'a RawDocument>,
    output: &'a RawDocument,
}

/// Appends the stages that do the work.
pub(super) fn parse(
    spec: RawBsonRef<'_>,
    variables: &Variables,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let RawBsonRef::Document(spec) = spec else {
        return Err(failed_to_parse(format!(
            "the $fill stage specification must be an object, found {}",
            type_name(spec)
        )));
    };
    let fill = Fill::parse(spec)?;
    let (mut windows, mut additions) = (DocBuilder::new(), DocBuilder::new());
    for (path, value) in elements(fill.output) {
        let at = format!("$fill.output.{path}");
        let RawBsonRef::Document(how) = value else {
            return Err(wrong_type(&at, value, "object"));
        };
        check_duplicates(&at, how)?;
        let (mut method, mut given) = (None, None);
        for (name, value) in elements(how) {
            match name {
                "method" => method = optional_text(&format!("{at}.method"), value)?,
                "value" => given = Some(value),
                _ => return Err(unknown_field(&format!("{at}.{name}"))),
            }
        }
        let field = format!("${path}");
        match (method, given) {
            (Some("linear"), None) => append_function(&mut windows, path, "$linearFill", &field),
            (Some("locf"), None) => append_function(&mut windows, path, "$locf", &field),
            (Some(_), None) => {
                return Err(error(6_050_202, "Method must be either locf or linear"));
            }
            (None, Some(value)) => {
                additions.start_document(path);
                additions.start_array("$ifNull");
                additions.push(RawBsonRef::String(&field));
                additions.push(value);
                additions.end();
                additions.end();
            }
            _ => {
                return Err(error(
                    6_050_200,
                    "Each field of the output of $fill must have exactly one of 'method' and 'value'",
                ));
            }
        }
    }
    let (windows, additions) = (windows.finish(), additions.finish());
    if !is_empty(&windows) {
        let stage = fill.windows(&windows);
        super::window::parse(RawBsonRef::Document(&stage), variables, out)?;
    }
    if !is_empty(&additions) {
        push_addition(&additions, variables, out)?;
    }
    Ok(())
}

fn append_function(windows: &mut DocBuilder, path: &str, function: &str, field: &str) {
    windows.start_document(path);
    windows.append(function, RawBsonRef::String(field));
    windows.end();
}

impl<'a> Fill<'a> {
    fn parse(spec: &'a RawDocument) -> Result<Fill<'a>> {
        check_duplicates("$fill", spec)?;
        let (mut partition_by, mut partition_by_fields) = (None, None);
        let (mut sort_by, mut output) = (None, None);
        for (name, value) in elements(spec) {
            match (name, value) {
                ("partitionBy", RawBsonRef::Document(_) | RawBsonRef::String(_)) => {
                    partition_by = Some(value);
                }
                ("partitionBy", _) => {
                    return Err(wrong_type("$fill.partitionBy", value, "[string, object]"));
                }
                ("partitionByFields", _) => {
                    partition_by_fields = parse_paths("$fill", value)?;
                }
                ("sortBy", _) => sort_by = optional_document("$fill.sortBy", value)?,
                ("output", _) => output = optional_document("$fill.output", value)?,
                _ => return Err(unknown_field(&format!("$fill.{name}"))),
            }
        }
        if partition_by.is_some() && partition_by_fields.is_some() {
            return Err(error(
                6_050_204,
                "Maximum one of 'partitionBy' and 'partitionByFields can be specified in '$fill'",
            ));
        }
        Ok(Fill {
            partition_by,
            partition_by_fields,
            sort_by,
            output: output.ok_or_else(|| missing_field("$fill.output"))?,
        })
    }

    /// The specification of the `$setWindowFields` that fills in these fields.
    fn windows(&self, output: &RawDocument) -> pinion_bson::RawDocumentBuf {
        let mut out = DocBuilder::new();
        if let Some(partition_by) = self.partition_by {
            out.append("partitionBy", partition_by);
        }
        if let Some(paths) = &self.partition_by_fields {
            // Names of their own, since a path is none.
            out.start_document("partitionBy");
            for (at, path) in paths.iter().enumerate() {
                out.append(&format!("{at}"), RawBsonRef::String(&format!("${path}")));
            }
            out.end();
        }
        if let Some(sort_by) = self.sort_by {
            out.append("sortBy", RawBsonRef::Document(sort_by));
        }
        out.append("output", RawBsonRef::Document(output));
        out.finish()
    }
}

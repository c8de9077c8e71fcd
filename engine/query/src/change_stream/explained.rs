//! The stages of a change stream as `explain` shows them.
//!
//! Source: MongoDB 8 shows each of the stages that `$changeStream` stands for as
//! `{$changeStream: {stage: ...}}`, behind the cursor on the oplog.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc};

use super::options::{BeforeChange, ChangeStreamOptions, FullDocument, Start};
use super::scope::Scope;

/// The stages of a stream that would begin at `begin` without a place of its own, in their order.
/// `spec` is its specification.
pub fn explained_stages(
    spec: &RawDocument,
    options: &ChangeStreamOptions,
    scope: &Scope,
    begin: Timestamp,
) -> Vec<RawDocumentBuf> {
    let token = options.start.first_token_in(options.token_form, begin);
    let token = token.to_document();
    let filter = rawdoc! { "ns": { "$regex": scope.pattern() } };
    let mut stages = vec![
        stage("internalUnwindTransaction", |out| {
            out.append("filter", &*filter);
        }),
        stage("internalTransform", |out| {
            out.append("options", &*completed(spec, options, &token));
        }),
        stage("internalCheckInvalidate", |_| {}),
        stage("internalCheckResumability", |out| {
            out.append("resumeToken", &*token);
        }),
    ];
    if options.before_change != BeforeChange::Off {
        stages.push(stage("internalAddPreImage", |out| {
            out.append("fullDocumentBeforeChange", options.before_change.name());
        }));
    }
    if options.full_document != FullDocument::Default {
        stages.push(stage("internalAddPostImage", |out| {
            out.append("fullDocument", options.full_document.name());
        }));
    }
    if matches!(&options.start, Start::Behind(resume) if resume.data.is_event) {
        stages.push(stage("internalEnsureResumeTokenPresent", |out| {
            out.append("resumeToken", &*token);
        }));
    }
    stages
}

fn stage(name: &str, more: impl FnOnce(&mut DocBuilder)) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.start_document("$changeStream").append("stage", name);
    more(&mut out);
    out.end();
    out.finish()
}

/// The specification with what it leaves open.
fn completed(
    spec: &RawDocument,
    options: &ChangeStreamOptions,
    token: &RawDocument,
) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    if options.start == Start::Now {
        out.append("resumeAfter", token);
    }
    let mut copy = |name: &str| match pinion_bson::get(spec, name) {
        None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => {}
        Some(value) => {
            out.append_raw(name, value);
        }
    };
    ["resumeAfter", "startAfter", "startAtOperationTime"]
        .into_iter()
        .for_each(&mut copy);
    out.append("fullDocument", options.full_document.name())
        .append("fullDocumentBeforeChange", options.before_change.name());
    for (name, is_set) in [
        ("allChangesForCluster", options.all_changes_for_cluster),
        ("showExpandedEvents", options.show_expanded_events),
    ] {
        if is_set {
            out.append(name, true);
        }
    }
    out.finish()
}

impl Scope {
    /// The names of what is watched, as a regular expression.
    fn pattern(&self) -> String {
        match self {
            Scope::Collection(ns) => format!("^{}$", escaped(ns)),
            Scope::Database(db) => format!(r"^{}\.(?!(\$|system\.)).+$", escaped(db)),
            Scope::Cluster => r"^(?!(admin|config|local)\.)[^.]+\.(?!(\$|system\.)).+$".to_owned(),
        }
    }
}

fn escaped(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for letter in name.chars() {
        if letter.is_ascii_punctuation() && letter != '_' {
            out.push('\\');
        }
        out.push(letter);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(spec: RawDocumentBuf, scope: &Scope) -> Vec<String> {
        let options = ChangeStreamOptions::parse(RawBsonRef::Document(&spec)).expect("sound");
        let begin = Timestamp {
            time: 7,
            increment: 1,
        };
        let stages = explained_stages(&spec, &options, scope, begin);
        let text = |stage: &RawDocumentBuf| crate::document_text(stage);
        stages.iter().map(text).collect()
    }

    #[test]
    fn stages_are_those_that_the_options_ask_for() {
        let collection = Scope::Collection("test.a-b".to_owned());
        let stages = shown(pinion_bson::rawdoc! {}, &collection);
        assert_eq!(stages.len(), 4, "{stages:?}");
        assert!(
            stages[0].contains(r#"stage: "internalUnwindTransaction", filter: { ns: { $regex:"#)
        );
        assert!(
            stages[1].contains("options: { resumeAfter: { _data:"),
            "{stages:?}"
        );
        assert!(
            stages[1].contains(r#"fullDocument: "default", fullDocumentBeforeChange: "off" }"#),
            "{stages:?}"
        );
        assert_eq!(
            stages[2],
            r#"{ $changeStream: { stage: "internalCheckInvalidate" } }"#
        );
        let spec = pinion_bson::rawdoc! {
            "fullDocument": "updateLookup", "fullDocumentBeforeChange": "required", "showExpandedEvents": true,
            "startAtOperationTime": Timestamp { time: 3, increment: 4 },
        };
        let stages = shown(spec, &Scope::Database("d".to_owned()));
        assert_eq!(stages.len(), 6, "{stages:?}");
        assert!(stages[1].contains("startAtOperationTime: Timestamp(3, 4)"));
        assert!(stages[1].contains("showExpandedEvents: true"), "{stages:?}");
        assert!(!stages[1].contains("resumeAfter"), "{stages:?}");
        assert!(
            stages[4].contains(r#"internalAddPreImage", fullDocumentBeforeChange: "required""#)
        );
        assert!(stages[5].contains(r#"internalAddPostImage", fullDocument: "updateLookup""#));
    }
}

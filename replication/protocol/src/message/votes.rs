//! `replSetRequestVotes`: a candidate asks, a voter answers.
//!
//! Source: replication document, "Candidate Perspective" and "Voter Perspective".

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_clock::{OpTime, Term};
use pinion_wire::Result;
use pinion_wire::idl::{CommandReader, FieldReader, Path};

use super::optime::{append_optime, opt_optime, required, required_term};
use crate::config::{ConfigVersion, MAX_MEMBERS, NO_TERM};

/// What a candidate asks with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoteRequest {
    pub set_name: String,
    /// A question whether the vote would be given; nothing follows from the answer.
    pub dry_run: bool,
    /// Of a dry run the candidate's present term, otherwise the one that it wants to be the primary
    /// of.
    pub term: Term,
    /// The candidate's place in its configuration.
    pub candidate_index: usize,
    pub config: ConfigVersion,
    /// The last entry of the candidate's oplog.
    pub last_written: OpTime,
}

impl VoteRequest {
    /// Reads the command.
    ///
    /// # Errors
    /// A field that is missing, of a wrong type or unknown.
    pub fn parse(body: &RawDocument) -> Result<VoteRequest> {
        let reader = CommandReader::new("replSetRequestVotes", body)?;
        reader.ignore(&["replSetRequestVotes"]);
        let applied = opt_optime(&reader, "lastAppliedOpTime")?;
        // MongoDB compares what is written since 8.0, and what is applied before.
        let written = opt_optime(&reader, "lastWrittenOpTime")?.or(applied);
        let index = reader.opt_between("candidateIndex", 0, MAX_MEMBERS as i64 - 1)?;
        let request = VoteRequest {
            set_name: reader.str("setName")?.to_owned(),
            dry_run: reader.opt_safe_bool("dryRun")?.unwrap_or(false),
            term: required_term(&reader, "term")?,
            candidate_index: required(&reader, "candidateIndex", index)? as usize,
            config: ConfigVersion {
                version: reader.i64("configVersion")?,
                term: reader.opt_i64("configTerm")?.unwrap_or(NO_TERM),
            },
            last_written: required(&reader, "lastAppliedOpTime", written)?,
        };
        reader.finish()?;
        Ok(request)
    }

    pub(super) fn append_to(&self, out: &mut DocBuilder) {
        out.append("replSetRequestVotes", 1)
            .append("setName", self.set_name.as_str())
            .append("dryRun", self.dry_run)
            .append("term", self.term.0)
            .append("candidateIndex", self.candidate_index as i64)
            .append("configVersion", self.config.version)
            .append("configTerm", self.config.term);
        // Voters before MongoDB 8.0 refuse another name.
        append_optime(out, "lastAppliedOpTime", self.last_written);
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct VoteResponse {
    pub term: Term,
    pub granted: bool,
    /// Why not; empty when granted.
    pub reason: String,
}

impl VoteResponse {
    /// Reads the reply.
    ///
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(reply: &RawDocument) -> Result<VoteResponse> {
        let reader = FieldReader::object(Path::root("ReplSetRequestVotesResponse"), reply)?;
        Ok(VoteResponse {
            term: required_term(&reader, "term")?,
            granted: reader.bool("voteGranted")?,
            reason: reader.opt_str("reason")?.unwrap_or_default().to_owned(),
        })
    }

    /// The reply, without `ok`.
    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("term", self.term.0)
            .append("voteGranted", self.granted)
            .append("reason", self.reason.as_str());
        out.finish()
    }
}

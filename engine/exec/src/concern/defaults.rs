//! The default read and write concern: what `setDefaultRWConcern` stores, and what holds where
//! nothing is stored.
//!
//! Each core keeps what it has read of them. Whatever may have written them has every core forget
//! that, once it is written.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinion_bson::{DateTime, DocBuilder, RawBsonRef, RawDocument, Timestamp, rawdoc};
use pinion_catalog::{id_key, partition_of, stored_document};
use pinion_runtime::LocalBoxFuture;
use pinion_runtime::sync::Semaphore;
use pinion_wire::idl::{
    Namespace, ReadConcern, ReadConcernLevel, WriteConcern, WriteConcernW, parse_read_concern,
    parse_write_concern,
};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::append_write_concern;
use crate::acquire::acquire_read;
use crate::read::read_newest;
use crate::topology::{SetView, set_view};

/// The collection that they are stored in.
pub const SETTINGS: (&str, &str) = ("config", "settings");
/// The `_id` of their document there.
pub const STORED_AS: &str = "ReadWriteConcernDefaults";

const READ: &str = "defaultReadConcern";
const WRITE: &str = "defaultWriteConcern";

/// The concerns of commands that name none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DefaultConcerns {
    /// What was set; `None` where that is as before anything was set.
    pub read: Option<ReadConcernLevel>,
    pub write: Option<WriteConcern>,
    /// What holds while none was set.
    pub implicit_write: WriteConcern,
    /// When one was set last.
    pub(super) updated: Option<(Timestamp, DateTime)>,
    /// When this was read, in milliseconds since 1970.
    pub(super) read_ms: i64,
}

/// What the cores know of them.
pub struct DefaultsCache {
    known: RefCell<Option<Rc<DefaultConcerns>>>,
    /// One sets the default concerns at a time; core 0 has it.
    pub turn: Semaphore,
    /// How often what was known has been forgotten.
    forgotten: Cell<u64>,
}

/// The default concerns that this core knows.
pub fn default_concerns() -> Rc<DefaultsCache> {
    pinion_runtime::core_local()
}

impl Default for DefaultsCache {
    fn default() -> DefaultsCache {
        DefaultsCache {
            known: RefCell::default(),
            turn: Semaphore::new(1),
            forgotten: Cell::new(0),
        }
    }
}

impl DefaultsCache {
    /// What holds now. Where that cannot be read, it is what holds before anything was set.
    pub async fn get(&self) -> Rc<DefaultConcerns> {
        let known = self.known.borrow().clone();
        let known = match known {
            Some(known) => known,
            None => self.load().await,
        };
        let implicit_write = implicit_write();
        match known.implicit_write == implicit_write {
            true => known,
            // The configuration of the set has changed.
            false => Rc::new(DefaultConcerns {
                implicit_write,
                ..(*known).clone()
            }),
        }
    }

    async fn load(&self) -> Rc<DefaultConcerns> {
        let forgotten = self.forgotten.get();
        match stored().await {
            Ok(stored) => {
                let stored = Rc::new(stored);
                if self.forgotten.get() == forgotten {
                    self.known.replace(Some(stored.clone()));
                }
                stored
            }
            Err(error) => {
                tracing::warn!(target: "COMMAND", id = 7_300_011u64, error = %error, "The default read and write concern could not be read");
                Rc::default()
            }
        }
    }

    /// The level that reads have by default, as far as it is known without looking.
    pub(crate) fn known_read_level(&self) -> Option<ReadConcernLevel> {
        self.known.borrow().as_ref()?.read
    }

    pub fn forget(&self) {
        self.forgotten.set(self.forgotten.get() + 1);
        self.known.replace(None);
    }
}

/// Has every core read the default concerns again before it uses them. Whatever changes documents
/// in another way than by commands and the applier calls it: a rollback, the clone of an initial
/// sync.
pub fn forget_everywhere() -> LocalBoxFuture<'static, ()> {
    Box::pin(async move {
        pinion_runtime::on_all_cores(|_| async { default_concerns().forget() }).await;
    })
}

/// Whether `setDefaultRWConcern` has set a write concern.
pub fn has_default_write_concern() -> LocalBoxFuture<'static, bool> {
    Box::pin(async move { default_concerns().get().await.write.is_some() })
}

/// `{w: "majority"}`, but where arbiters could keep that from being reached.
fn implicit_write() -> WriteConcern {
    let is_majority = set_view().is_some_and(|view| view.default_is_majority && view.has_config());
    let w = match is_majority {
        true => WriteConcernW::Majority,
        false => WriteConcernW::Members(1),
    };
    WriteConcern {
        w: Some(w),
        ..WriteConcern::default()
    }
}

/// What is stored now. The newest version, as a member may have applied it and not be able to show
/// it yet.
async fn stored() -> Result<DefaultConcerns> {
    let (db, collection) = SETTINGS;
    let ctx = OpContext::internal(
        0,
        pinion_command::row("find"),
        db,
        pinion_runtime::now().as_nanos(),
    );
    let acquired = acquire_read(&ctx, Namespace::new(db, collection)?, None).await?;
    let mut defaults = DefaultConcerns::default();
    if let Some(collection) = acquired.collection() {
        let key = id_key(RawBsonRef::String(STORED_AS));
        let partition = partition_of(collection, &key);
        let found = read_newest(collection.tree(), partition, key).await?;
        if let Some(found) = found {
            defaults = DefaultConcerns::parse(stored_document(&found))?;
        }
    }
    defaults.read_ms = pinion_runtime::wall_ms();
    Ok(defaults)
}

impl DefaultConcerns {
    /// Reads them as they are stored.
    fn parse(document: &RawDocument) -> Result<DefaultConcerns> {
        let part = |name| match pinion_bson::get(document, name) {
            Some(RawBsonRef::Document(part)) => Some(part),
            _ => None,
        };
        let read = part(READ).map(parse_read_concern).transpose()?;
        let time = document.get_timestamp("updateOpTime").ok();
        let wall = document.get_datetime("updateWallClockTime").ok();
        Ok(DefaultConcerns {
            read: read.and_then(|read| read.level),
            write: part(WRITE).map(parse_write_concern).transpose()?,
            updated: time.zip(wall),
            ..DefaultConcerns::default()
        })
    }

    /// What holds once a change was made to it.
    ///
    /// # Errors
    /// `IllegalOperation` where it takes away the default write concern.
    pub fn changed(&self, change: Change, now: (Timestamp, DateTime)) -> Result<DefaultConcerns> {
        let mut changed = self.clone();
        if let Some(read) = change.read {
            changed.read = read;
        }
        if let Some(write) = change.write {
            if write.is_none() && self.write.is_some() {
                return Err(Error::new(
                    ErrorCode::ILLEGAL_OPERATION,
                    "The global default write concern cannot be unset once it is set.",
                ));
            }
            changed.write = write;
        }
        changed.updated = Some(now);
        Ok(changed)
    }

    /// Appends what is stored of them beside the `_id`.
    pub fn append_stored(&self, out: &mut DocBuilder) {
        if let Some(level) = self.read {
            out.append(READ, &*rawdoc! { "level": level.name() });
        }
        if let Some(write) = &self.write {
            out.start_document(WRITE);
            append_write_concern(out, write);
            out.end();
        }
        if let Some((time, wall)) = self.updated {
            out.append("updateOpTime", RawBsonRef::Timestamp(time))
                .append("updateWallClockTime", RawBsonRef::DateTime(wall));
        }
    }

    /// Appends them as commands report them.
    pub fn append_reported(&self, out: &mut DocBuilder) {
        let is_majority = self.implicit_write.w == Some(WriteConcernW::Majority);
        let implicit_write = || is_majority.then(|| self.implicit_write.clone());
        let shown = DefaultConcerns {
            read: self.read.or(Some(ReadConcernLevel::Local)),
            write: self.write.clone().or_else(implicit_write),
            ..self.clone()
        };
        shown.append_stored(out);
        let source = |is_set| if is_set { "global" } else { "implicit" };
        out.append("defaultWriteConcernSource", source(self.write.is_some()))
            .append("defaultReadConcernSource", source(self.read.is_some()));
        let read_at = DateTime::from_millis(self.read_ms);
        out.append("localUpdateWallClockTime", RawBsonRef::DateTime(read_at));
    }
}

/// What `setDefaultRWConcern` changes; of each an inner `None` takes it away.
#[derive(Debug, PartialEq)]
pub struct Change {
    read: Option<Option<ReadConcernLevel>>,
    write: Option<Option<WriteConcern>>,
}

impl Change {
    /// Reads what the command names.
    ///
    /// # Errors
    /// Concerns that are none, or that cannot be a default.
    pub fn parse(
        read: Option<&RawDocument>,
        write: Option<&RawDocument>,
        view: &SetView,
    ) -> Result<Change> {
        if read.is_none() && write.is_none() {
            return Err(Error::bad_value(format!(
                "At least one of the \"{READ}\" or \"{WRITE}\" fields must be present"
            )));
        }
        Ok(Change {
            read: read.map(read_default).transpose()?,
            write: write.map(|write| write_default(write, view)).transpose()?,
        })
    }
}

fn read_default(document: &RawDocument) -> Result<Option<ReadConcernLevel>> {
    let concern = parse_read_concern(document)?;
    let unsuitable = |what: String| {
        Error::bad_value(format!(
            "{what} is not suitable for the default read concern"
        ))
    };
    if let Some(level @ (ReadConcernLevel::Linearizable | ReadConcernLevel::Snapshot)) =
        concern.level
    {
        return Err(unsuitable(format!("level: '{}'", level.name())));
    }
    let alone = ReadConcern {
        level: concern.level,
        ..ReadConcern::default()
    };
    if concern != alone {
        return Err(unsuitable("a time to read after or at".into()));
    }
    check_provenance(document, "read")?;
    Ok(concern.level)
}

fn write_default(document: &RawDocument, view: &SetView) -> Result<Option<WriteConcern>> {
    let concern = parse_write_concern(document)?;
    check_provenance(document, "write")?;
    if document.is_empty() {
        return Ok(None);
    }
    if concern.is_unacknowledged() {
        return Err(Error::bad_value(
            "Unacknowledged write concern is not suitable for the default write concern",
        ));
    }
    match &concern.w {
        None => Err(Error::bad_value(
            "A default write concern has to have the field 'w'",
        )),
        Some(WriteConcernW::Mode(mode)) if !view.modes.contains(mode) => Err(Error::new(
            ErrorCode::UNKNOWN_REPL_WRITE_CONCERN,
            format!("No write concern mode named '{mode}' found in replica set configuration"),
        )),
        Some(WriteConcernW::Members(members)) if u32::from(*members) > view.data_members => {
            Err(Error::new(
                ErrorCode::UNSATISFIABLE_WRITE_CONCERN,
                "Not enough data-bearing nodes",
            ))
        }
        Some(_) => Ok(Some(concern)),
    }
}

fn check_provenance(document: &RawDocument, which: &str) -> Result<()> {
    match pinion_bson::get(document, "provenance") {
        None => Ok(()),
        Some(_) => Err(Error::bad_value(format!(
            "'provenance' is not suitable for the default {which} concern"
        ))),
    }
}

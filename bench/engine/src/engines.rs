//! The engines by name.

use crate::pinion;
use crate::session::{Outcome, Settings};

/// All engines, and of each what serves it; none: this program was built without it.
type Serve = fn(Settings) -> Outcome<()>;

pub struct Engine {
    pub name: &'static str,
    pub serve: Option<Serve>,
    /// Why there is nothing to serve.
    pub missing: &'static str,
}

#[cfg(feature = "lmdb")]
const LMDB: Option<Serve> =
    Some(|settings| crate::serve::serve::<crate::peers::lmdb::Lmdb>(&settings));
#[cfg(not(feature = "lmdb"))]
const LMDB: Option<Serve> = None;
#[cfg(feature = "redb")]
const REDB: Option<Serve> =
    Some(|settings| crate::serve::serve::<crate::peers::redb::Redb>(&settings));
#[cfg(not(feature = "redb"))]
const REDB: Option<Serve> = None;
#[cfg(feature = "fjall")]
const FJALL: Option<Serve> =
    Some(|settings| crate::serve::serve::<crate::peers::fjall::Fjall>(&settings));
#[cfg(not(feature = "fjall"))]
const FJALL: Option<Serve> = None;
#[cfg(feature = "rocksdb")]
const ROCKSDB: Option<Serve> =
    Some(|settings| crate::serve::serve::<crate::peers::rocksdb::RocksDb>(&settings));
#[cfg(not(feature = "rocksdb"))]
const ROCKSDB: Option<Serve> = None;
#[cfg(wiredtiger_linked)]
const WIREDTIGER: Option<Serve> =
    Some(|settings| crate::serve::serve::<crate::peers::wiredtiger::WiredTiger>(&settings));
#[cfg(not(wiredtiger_linked))]
const WIREDTIGER: Option<Serve> = None;

const LEFT_OUT: &str = "built without it: its feature is off";

pub const ENGINES: [Engine; 6] = [
    Engine {
        name: "pinion",
        serve: Some(pinion::serve),
        missing: "",
    },
    Engine {
        name: "rocksdb",
        serve: ROCKSDB,
        missing: LEFT_OUT,
    },
    Engine {
        name: "wiredtiger",
        serve: WIREDTIGER,
        missing: "built without it: WIREDTIGER_DIR named no build of it; bench/engine/get-wiredtiger makes one",
    },
    Engine {
        name: "lmdb",
        serve: LMDB,
        missing: LEFT_OUT,
    },
    Engine {
        name: "redb",
        serve: REDB,
        missing: LEFT_OUT,
    },
    Engine {
        name: "fjall",
        serve: FJALL,
        missing: LEFT_OUT,
    },
];

pub fn find(name: &str) -> Outcome<&'static Engine> {
    ENGINES
        .iter()
        .find(|engine| engine.name == name)
        .ok_or_else(|| {
            let names: Vec<&str> = ENGINES.iter().map(|engine| engine.name).collect();
            format!("no engine is called {name}; there are {}", names.join(", "))
        })
}

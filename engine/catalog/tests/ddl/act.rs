//! What scripts can have done, as operations on some core.

use pinion_bson::{DocBuilder, RawDocumentBuf, rawdoc};
use pinion_catalog::{
    BuildLimits, Capped, CollMod, CollectionOptions, DropTarget, GateAccess, GateMode, IndexChange,
    IndexName, IndexSelection, coll_mod, convert_to_capped, create_collection, create_indexes,
    drop_collection, drop_database, drop_indexes, parse_index_spec, rename_collection,
};
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use crate::documents::{copy, insert};

/// A collection of the database `d`, unless the name has one.
pub fn namespace(name: &str) -> Namespace {
    let full = match name.contains('.') {
        true => name.to_owned(),
        false => format!("d.{name}"),
    };
    Namespace::parse(&full).expect("a name")
}

pub fn mode(name: &str) -> GateMode {
    match name {
        "NoWrites" => GateMode::NoWrites,
        "NoStaying" => GateMode::NoStaying,
        "Closed" => GateMode::Closed,
        _ => panic!("there is no mode {name}"),
    }
}

/// The access of a statement of this name.
pub fn access(name: &str) -> Option<GateAccess> {
    match name {
        "read" => Some(GateAccess::Read),
        "stay" => Some(GateAccess::ReadAndStay),
        "write" => Some(GateAccess::Write),
        _ => None,
    }
}

fn is_set(words: &[String], word: &str) -> bool {
    words.iter().any(|other| other == word)
}

fn spec(field: &str, is_unique: bool) -> RawDocumentBuf {
    let mut spec = DocBuilder::new();
    spec.start_document("key").append(field, 1i32).end();
    spec.append("name", field);
    if is_unique {
        spec.append("unique", true);
    }
    let spec = spec.finish();
    parse_index_spec(&spec, false).expect("a specification")
}

/// Does what the words say; gives the outcome in words.
pub async fn act(ctx: OpContext, words: Vec<String>) -> Result<String> {
    let ns = namespace(&words[1]);
    let done = |what: &str| Ok(what.to_owned());
    match words[0].as_str() {
        "create" => {
            let capped = is_set(&words, "capped").then_some(Capped {
                size_bytes: 1 << 20,
                max_documents: None,
            });
            let options = CollectionOptions {
                capped,
                ..CollectionOptions::default()
            };
            let made = create_collection(&ctx, ns, options).await?;
            done(made.map_or("there already", |_| "made"))
        }
        "drop" => {
            let dropped = drop_collection(&ctx, ns).await?;
            done(dropped.map_or("not there", |_| "dropped"))
        }
        "drop-database" => {
            let dropped = drop_database(&ctx, words[1].clone()).await?;
            done(dropped.map_or("not there", |_| "dropped"))
        }
        "rename" => {
            let target = match is_set(&words, "drop-target") {
                true => DropTarget::Yes,
                false => DropTarget::No,
            };
            rename_collection(&ctx, ns, namespace(&words[2]), target, false).await?;
            done("renamed")
        }
        "index" => {
            let is_unique = is_set(&words, "unique");
            let specs = words[2].split(',').map(|field| spec(field, is_unique));
            let limits = BuildLimits {
                memory_bytes: 1 << 20,
                least_free_bytes: 0,
                most_active: 3,
            };
            let made = create_indexes(&ctx, ns, specs.collect(), limits, None).await?;
            Ok(format!("indexes {} -> {}", made.before, made.after))
        }
        "drop-index" => {
            let selection = match words[2].as_str() {
                "*" => IndexSelection::All,
                name => IndexSelection::Names(vec![name.to_owned()]),
            };
            let before = drop_indexes(&ctx, ns, selection).await?.before;
            Ok(format!("indexes before {before}"))
        }
        "modify" => modify(&ctx, ns, &words[2], words.get(3)).await,
        "convert" => {
            let copying = Box::new(|from, to| -> pinion_runtime::LocalBoxFuture<'static, _> {
                Box::pin(copy(from, to))
            });
            convert_to_capped(&ctx, ns, 1 << 20, copying).await?;
            done("converted")
        }
        "insert" => {
            let (from, to) = words[2].split_once("..").expect("a range");
            let ids = from.parse().expect("an id")..to.parse().expect("an id");
            Ok(format!("inserted {}", insert(&ctx, &ns, ids).await?))
        }
        verb => panic!("there is no {verb}"),
    }
}

/// Sets a property of an index, or of the collection.
async fn modify(
    ctx: &OpContext,
    ns: Namespace,
    what: &str,
    index: Option<&String>,
) -> Result<String> {
    let index = index.map(|name| IndexChange {
        which: IndexName::Name(name.clone()),
        expire_after_secs: None,
        hidden: (what == "hidden").then_some(true),
        unique: (what == "unique").then_some(true),
        prepare_unique: (what == "prepare-unique").then_some(true),
    });
    let change = CollMod {
        command: rawdoc! { "collMod": ns.collection() },
        index,
        dry_run: false,
        validator: None,
        validation_level: None,
        validation_action: None,
        view_on: None,
        pipeline: None,
        pre_and_post_images: (what == "images").then_some(true),
        time_series: None,
        capped_size: None,
        capped_max: None,
        expire_after_secs: None,
    };
    let modified = coll_mod(ctx, ns, change).await?;
    let names = modified.index.iter().map(|property| property.name);
    let names: Vec<&str> = names.collect();
    Ok(format!("modified {}", names.join(","))
        .trim_end()
        .to_owned())
}

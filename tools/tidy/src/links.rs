//! What the crates that a router is to have beside those of `core/` link, however far away: neither
//! storage, nor a catalog, nor the connection layer.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::{dependencies, manifest_folder};
use crate::tree::File;

/// The crates that a router links beside those of `core/`, and what each of them does not link.
const OF_ROUTER: &[(&str, &[&str])] = &[
    ("pinion-command", NOT_BELOW),
    ("pinion-service", NOT_BELOW),
    ("pinion-merge", NOT_BELOW),
    ("pinion-sharding-protocol", NOT_BELOW),
    ("pinion-sharding-router", OF_NODES),
    ("pinion-router", OF_NODES),
];

const NOT_BELOW: &[&str] = &["pinion-storage", "pinion-catalog", "pinion-server"];
const OF_NODES: &[&str] = &["pinion-storage", "pinion-catalog"];

/// The dependencies of each package of the tree. Those of its tests do not count.
type Graph<'f> = BTreeMap<&'f str, Vec<&'f str>>;

pub fn router_links(files: &[File]) -> Vec<String> {
    let manifests = || files.iter().filter(|file| manifest_folder(file).is_some());
    let graph: Graph<'_> = manifests()
        .filter_map(|file| Some((package(file)?, dependencies(file))))
        .collect();
    let renamed = files.iter().filter_map(renamed);
    let missing = OF_ROUTER
        .iter()
        .filter(|(name, _)| !graph.contains_key(*name));
    let missing = missing.map(|(name, _)| format!("{name}: a router's crate that is not there"));
    let linked = OF_ROUTER.iter().flat_map(|(name, not_linked)| {
        let found = not_linked
            .iter()
            .filter_map(|wanted| path(&graph, name, wanted));
        found.map(move |path| format!("{name}: of a router, but links {}", path.join(" -> ")))
    });
    renamed.chain(missing).chain(linked).collect()
}

/// The name of a manifest's package.
fn package(file: &File) -> Option<&str> {
    let line = file.text.lines().find(|line| line.starts_with("name = "))?;
    line.split('"').nth(1)
}

/// A dependency on a crate of the tree by another name, which the graph would not show.
fn renamed(file: &File) -> Option<String> {
    let is_manifest = file.path == "Cargo.toml" || manifest_folder(file).is_some();
    let renames = |line: &&str| line.contains("package = \"pinion");
    let line = file.text.lines().find(renames).filter(|_| is_manifest)?;
    Some(format!(
        "{}: a crate of the tree has one name: {line}",
        file.path
    ))
}

/// How one package comes to depend on another, if it does.
fn path<'f>(graph: &Graph<'f>, from: &'f str, to: &'f str) -> Option<Vec<&'f str>> {
    fn visit<'f>(
        graph: &Graph<'f>,
        at: &'f str,
        to: &'f str,
        seen: &mut BTreeSet<&'f str>,
    ) -> Option<Vec<&'f str>> {
        if at == to {
            return Some(vec![at]);
        }
        if !seen.insert(at) {
            return None;
        }
        let mut next = graph.get(at).into_iter().flatten();
        let mut rest = next.find_map(|next| visit(graph, next, to, seen))?;
        rest.insert(0, at);
        Some(rest)
    }
    visit(graph, from, to, &mut BTreeSet::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A package, and the lines of its manifest behind its name.
    #[track_caller]
    fn check(manifests: &[(&str, &str)], expected: &[&str]) {
        let file = |(name, lines): &(&str, &str)| {
            let text = format!("[package]\nname = \"{name}\"\n\n{lines}");
            File::new(format!("engine/{name}/Cargo.toml"), text)
        };
        let given = |name: &str| manifests.iter().any(|(given, _)| *given == name);
        let others = OF_ROUTER.iter().filter(|(name, _)| !given(name));
        let others = others.map(|(name, _)| file(&(*name, "")));
        let files: Vec<File> = manifests.iter().map(file).chain(others).collect();
        let found = router_links(&files);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{found}");
        }
    }

    const QUERY: &str = "[dependencies]\npinion-query.workspace = true\n";
    const STORAGE: &str = "[dependencies]\npinion-storage.workspace = true\n";

    #[test]
    fn a_router_links_no_node() {
        check(
            &[
                ("pinion-service", QUERY),
                ("pinion-query", "[dependencies]\n"),
            ],
            &[],
        );
        check(
            &[("pinion-command", STORAGE)],
            &["pinion-command -> pinion-storage"],
        );
        check(
            &[("pinion-service", QUERY), ("pinion-query", STORAGE)],
            &["pinion-service -> pinion-query -> pinion-storage"],
        );
    }

    #[test]
    fn a_crate_that_is_renamed_is_missed() {
        assert_eq!(router_links(&[]).len(), OF_ROUTER.len());
    }

    #[test]
    fn every_way_to_depend_counts_but_that_of_tests() {
        let for_tests = STORAGE.replace("[dep", "[dev-dep");
        check(&[("pinion-service", &for_tests)], &[]);
        let of_target = STORAGE.replace("[dep", "[target.'cfg(unix)'.dep");
        check(
            &[("pinion-service", &of_target)],
            &["pinion-service -> pinion-storage"],
        );
        let in_table = "[dependencies.pinion-storage]\nworkspace = true\n";
        check(
            &[("pinion-service", in_table)],
            &["pinion-service -> pinion-storage"],
        );
        let in_table = "[target.'cfg(unix)'.dependencies.pinion-storage]\nworkspace = true\n";
        check(
            &[("pinion-service", in_table)],
            &["pinion-service -> pinion-storage"],
        );
        let of_build = STORAGE.replace("[dep", "[build-dep");
        check(
            &[("pinion-service", &of_build)],
            &["pinion-service -> pinion-storage"],
        );
        let renamed = "[dependencies]\ndisk = { package = \"pinion-storage\" }\n";
        check(&[("pinion-service", renamed)], &["has one name"]);
    }
}

//! Binds WiredTiger, where WIREDTIGER_DIR names a build of it (`bench/engine/get-wiredtiger` makes
//! one), and finds a RocksDB that was not built here (`bench/engine/get-rocksdb`) when the program
//! starts.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(wiredtiger_linked)");
    println!("cargo::rerun-if-env-changed=WIREDTIGER_DIR");
    println!("cargo::rerun-if-env-changed=ROCKSDB_LIB_DIR");
    let from = match std::env::var("ROCKSDB_LIB_DIR") {
        Ok(dir) => {
            println!("cargo::rustc-link-arg=-Wl,-rpath,{dir}");
            "Maven Central's rocksdbjni"
        }
        Err(_) => "built from the source in the crate",
    };
    println!("cargo::rustc-env=ROCKSDB_FROM={from}");
    #[cfg(feature = "wiredtiger")]
    if let Ok(dir) = std::env::var("WIREDTIGER_DIR") {
        bind(std::path::Path::new(&dir));
    }
}

#[cfg(feature = "wiredtiger")]
fn bind(dir: &std::path::Path) {
    let header = dir.join("include/wiredtiger.h");
    println!("cargo::rerun-if-changed={}", header.display());
    println!("cargo::rustc-link-search=native={}", dir.display());
    println!("cargo::rustc-link-lib=static=wiredtiger");
    println!("cargo::rustc-cfg=wiredtiger_linked");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    bindgen::builder()
        .header(header.to_str().expect("a path in UTF-8"))
        .allowlist_function("wiredtiger_(open|version|strerror)")
        .allowlist_type("WT_(CONNECTION|SESSION|CURSOR|ITEM)")
        .allowlist_var("WT_(NOTFOUND|ROLLBACK)")
        .layout_tests(false)
        .generate_comments(false)
        .generate()
        .expect("bindings of wiredtiger.h")
        .write_to_file(std::path::Path::new(&out).join("wiredtiger.rs"))
        .expect("bindings are written");
}

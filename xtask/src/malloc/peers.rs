//! Heaps of others as shared libraries, compiled from the sources that crates of the registry carry.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Heap;
use crate::{Setup, child, firmware, setup};

/// How one is compiled.
struct Peer {
    name: &'static str,
    /// Whether it is built to find misuse.
    hard: bool,
    /// The crate that carries its sources.
    package: &'static str,
    /// A shell script, in the folder of the crate, that writes `$OUT`.
    script: &'static str,
}

const PEERS: [Peer; 6] = [
    Peer { name: "mimalloc", hard: false, package: "libmimalloc-sys", script: MIMALLOC },
    Peer { name: "jemalloc", hard: false, package: "tikv-jemalloc-sys", script: JEMALLOC },
    Peer { name: "snmalloc", hard: false, package: "snmalloc-sys", script: SNMALLOC },
    Peer { name: "mimalloc, secure", hard: true, package: "libmimalloc-sys", script: MIMALLOC },
    Peer { name: "snmalloc, checks", hard: true, package: "snmalloc-sys", script: SNMALLOC },
    Peer { name: "hardened_malloc", hard: true, package: "hardened-malloc-sys", script: HARDENED },
];

/// Those that come as Debian's packages: their names, whether they find misuse, the packages and the libraries in them.
const PACKAGED: [(&str, bool, &[&str], &str); 2] = [
    ("tcmalloc", false, &["libtcmalloc-minimal4t64", "libtcmalloc-minimal4"], "libtcmalloc_minimal.so.4"),
    ("scudo", true, &["libclang-rt-19-dev", "libclang-rt-14-dev"], "libclang_rt.scudo_standalone-x86_64.so"),
];

/// The flags of its own build for releases.
const MIMALLOC: &str = "cd c_src/mimalloc/v3 && cc -O3 -DNDEBUG ${HARD:+-DMI_SECURE=4} -DMI_SHARED_LIB -DMI_SHARED_LIB_EXPORT \
    -DMI_MALLOC_OVERRIDE -fvisibility=hidden -fPIC -shared -ftls-model=initial-exec -fno-builtin-malloc -Iinclude src/static.c -o \"$OUT\" \
    -lpthread";

const JEMALLOC: &str = "rm -rf \"$OUT.build\" && cp -r jemalloc \"$OUT.build\" && cp configure/configure \"$OUT.build\" && \
    cd \"$OUT.build\" && sh configure >configure.log && make -j2 build_lib_shared >make.log && cp lib/libjemalloc.so.2 \"$OUT\" && \
    rm -rf \"$OUT.build\"";

const SNMALLOC: &str = "cd upstream/src/snmalloc/override && c++ -std=c++20 -O3 -DNDEBUG -DSNMALLOC_USE_WAIT_ON_ADDRESS=1 \
    ${HARD:+-DSNMALLOC_CHECK_CLIENT} -fPIC -shared -mcx16 -ftls-model=initial-exec -fno-rtti -w -I../.. new.cc malloc.cc -o \"$OUT\"";

/// Its default configuration. Compilers before C23 know `alignas` by its older name.
const HARDENED: &str = "cd vendor/hardened-malloc && cc -std=gnu2x -O3 -Dalignas=_Alignas -D_GNU_SOURCE \
    $(grep -v '^#' ../../config-default.conf | sed 's/^/-D/') -fPIC -shared -fvisibility=hidden -w -I. -Iinclude -Ithird_party \
    ../../src/util.c chacha.c h_malloc.c memory.c pages.c random.c -o \"$OUT\"";

/// Returns the heaps of others for which `wanted` is true of whether they find misuse, and says which cannot be had.
pub fn all(folder: &Path, setup: &Setup, wanted: impl Fn(bool) -> bool) -> Result<Vec<Heap>> {
    let sources = sources()?;
    let compiled = PEERS.iter().filter(|peer| wanted(peer.hard));
    let compiled = compiled.map(|peer| (peer.name, peer.hard, peer.compile(&sources, folder)));
    let packaged = PACKAGED.into_iter().filter(|&(_, hard, ..)| wanted(hard));
    let packaged = packaged.map(|(name, hard, packages, file)| {
        let library = setup::library(name, packages, file, setup);
        (name, hard, library.map(|library| (library, packages.join(" or "))))
    });
    let found = compiled.chain(packaged).filter_map(|(name, hard, library)| match library {
        Ok((library, origin)) => Some(Heap { name, hard, origin, library: Some(library), ..Heap::default() }),
        Err(error) => {
            eprintln!("xtask: without {name}: {error:#}");
            None
        }
    });
    Ok(found.collect())
}

impl Peer {
    /// Compiles the library, unless that version is there. Returns its path and the crate with its version.
    fn compile(&self, sources: &[Source], folder: &Path) -> Result<(PathBuf, String)> {
        let source = sources.iter().find(|source| source.name == self.package);
        let source = source.with_context(|| format!("benches/Cargo.lock has no {}", self.package))?;
        let file = format!("{}-{}.so", self.name.replace(", ", "-"), source.version);
        let library = folder.join("peers").join(file);
        if !library.is_file() {
            fs::create_dir_all(folder.join("peers"))?;
            let unfinished = library.with_extension("new");
            let mut shell = child::command("sh");
            shell.current_dir(&source.folder).args(["-c", self.script]).env("OUT", &unfinished);
            if self.hard {
                shell.env("HARD", "1");
            }
            child::run(&mut shell, &format!("compiling {}", self.name))?;
            fs::rename(unfinished, &library)?;
        }
        Ok((library, format!("{} {}", source.name, source.version)))
    }
}

/// A crate: its name, version and folder.
struct Source {
    name: String,
    version: String,
    folder: PathBuf,
}

/// Returns the crates that the measuring program is made of.
fn sources() -> Result<Vec<Source>> {
    let mut cargo = child::command("cargo");
    cargo.current_dir(firmware::root().join("benches"));
    cargo.args(["metadata", "--quiet", "--locked", "--all-features", "--format-version", "1"]);
    let packages = child::packages(&mut cargo)?;
    let source = |package: &serde_json::Value| {
        Some(Source {
            name: package["name"].as_str()?.to_owned(),
            version: package["version"].as_str()?.to_owned(),
            folder: Path::new(package["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    };
    Ok(packages.iter().filter_map(source).collect())
}

//! Tells the linker where the memory of the emulated machine is.

use std::env;
use std::fs;
use std::path::PathBuf;

/// QEMU's model of Arm's MPS2 board with image AN385, which also runs the code of smaller cores.
const MPS2: &str = "MEMORY
{
  FLASH : ORIGIN = 0x00000000, LENGTH = 4M
  RAM   : ORIGIN = 0x20000000, LENGTH = 4M
}
";

/// QEMU's RISC-V machine `virt`.
const VIRT: &str = "MEMORY
{
  FLASH : ORIGIN = 0x80000000, LENGTH = 4M
  RAM   : ORIGIN = 0x80400000, LENGTH = 4M
}

REGION_ALIAS(\"REGION_TEXT\", FLASH);
REGION_ALIAS(\"REGION_RODATA\", FLASH);
REGION_ALIAS(\"REGION_DATA\", RAM);
REGION_ALIAS(\"REGION_BSS\", RAM);
REGION_ALIAS(\"REGION_HEAP\", RAM);
REGION_ALIAS(\"REGION_STACK\", RAM);
";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let chosen = subjects();
    assert!(chosen.len() == 1, "choose one subject, as `--features talc`; chosen: {chosen:?}");
    let (memory, arguments): (_, &[&str]) = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("arm") => (MPS2, &["--nmagic", "-Tlink.x"]),
        // The memory comes first, because lld needs regions before their use.
        Ok("riscv32") => (VIRT, &["-Tmemory.x", "-Tlink.x"]),
        _ => return,
    };
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets it"));
    fs::write(folder.join("memory.x"), memory).expect("the output folder can be written");
    println!("cargo:rustc-link-search={}", folder.display());
    for argument in arguments {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}

/// The enabled features that choose a subject.
fn subjects() -> Vec<String> {
    let features = env::vars().filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_owned()));
    features
        .filter(|name| !["IN_PLACE", "PORTED"].contains(&name.as_str()) && !name.starts_with('_'))
        .collect()
}

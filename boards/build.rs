//! Tells the linker where each board's memory is: `memory.x` in the folder of its chip.

/// The folders, and the programs in them.
const CHIPS: [(&str, &[&str]); 8] = [
    ("microbit", &["microbit", "microbit-network", "microbit-interrupts"]),
    ("lm3s6965evb", &["lm3s6965evb", "lm3s6965evb-interrupts", "lm3s6965evb-rtic"]),
    ("mps2-an385", &["mps2-an385-reset", "mps2-an385-sampled"]),
    ("mps2-an386", &["mps2-an386", "mps2-an386-embassy"]),
    ("mps2-an386-zones", &["mps2-an386-zones"]),
    ("mps2-an505", &["mps2-an505", "mps2-an505-sampled"]),
    ("riscv32-virt", &["riscv32-virt", "riscv32-virt-sampled"]),
    ("riscv32-virt-cores", &["riscv32-virt-cores"]),
];

/// The linker's arguments on Arm.
const ARM: &[&str] = &["--nmagic", "-Tlink.x", "-Tdefmt.x"];

/// Those on RISC-V. The memory comes first, because lld needs regions before their use.
const RISCV: &[&str] = &["-Tmemory.x", "-Tlink.x", "-Tdefmt.x"];

fn main() {
    for (folder, programs) in CHIPS {
        println!("cargo:rerun-if-changed={folder}/memory.x");
        let arguments = if folder.starts_with("riscv") { RISCV } else { ARM };
        for program in programs {
            println!("cargo:rustc-link-arg-bin={program}=-L{}/{folder}", env!("CARGO_MANIFEST_DIR"));
            for argument in arguments {
                println!("cargo:rustc-link-arg-bin={program}={argument}");
            }
        }
    }
}

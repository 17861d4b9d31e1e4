//! Tells the linker where each board's memory is: `memory.x` in its folder. esp-hal has a script of its own.

fn main() {
    for board in ["rp2040-pico", "stm32f4-nucleo", "nrf52840-dk"] {
        println!("cargo:rerun-if-changed={board}/memory.x");
        println!("cargo:rustc-link-arg-bin={board}=-L{}/{board}", env!("CARGO_MANIFEST_DIR"));
        for argument in ["--nmagic", "-Tlink.x", "-Tdefmt.x"] {
            println!("cargo:rustc-link-arg-bin={board}={argument}");
        }
    }
    for argument in ["-Tlinkall.x", "-Tdefmt.x"] {
        println!("cargo:rustc-link-arg-bin=esp32c3-devkit={argument}");
    }
}

//! Asks the linker for a small stack in front of the variables, and for the addresses where those begin and end.

fn main() {
    let arguments = [
        "--stack-first",
        "-zstack-size=65536",
        "--export=__data_end",
        "--export=__global_base",
        "--export=__heap_base",
    ];
    for argument in arguments {
        println!("cargo:rustc-link-arg-cdylib={argument}");
    }
}

//! Packets of a tunnel in the C library's heap.

fn main() {
    println!("{}", musl::packets(2_000_000));
}

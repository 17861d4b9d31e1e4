//! What the tool says when it is used wrongly: one line of plain English that names the file and what to do.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::data;

/// What is wrong, the arguments, the standard input, the exit status, and a part of the message. `{d}` in the arguments is a folder
/// with the files of [`files`].
type Row = (&'static str, &'static str, &'static str, i32, &'static str);

const OK: &str = "a 1 8 8\nf 1\n";

#[rustfmt::skip]
const ROWS: &[Row] = &[
    // The command line.
    ("no command", "", "", 2, "Usage: allotment <COMMAND>"),
    ("unknown command", "fly", "", 2, "unrecognized subcommand 'fly'"),
    ("unknown option", "boards --fast", "", 2, "unexpected argument '--fast'"),
    ("no input", "plan", "", 2, "<INPUT>"),
    ("no input", "advise", "", 2, "<TRACE>"),
    ("no input", "replay", "", 2, "<TRACE>"),
    ("no input", "view", "", 2, "<TRACE>"),
    ("no input", "convert", "", 2, "<INPUT>"),
    ("no output", "convert {d}/ok.trace", "", 2, "<OUTPUT>"),
    ("no second run", "diff {d}/ok.trace", "", 2, "<AFTER>"),
    ("no budget", "budget {d}/ok.trace", "", 2, "--file"),
    ("no moment", "who {d}/ok.trace --until soon", "", 2, "write a number of events"),
    ("no output", "attach -", "", 2, "--output"),
    ("no source", "attach -o {d}/x.trace", "", 2, "required"),
    ("two sources", "attach - -o {d}/x.trace -- cat", "", 2, "cannot be used with"),
    ("no program", "record", "", 2, "<PROGRAM>"),
    // Numbers.
    ("no power of two", "plan {d}/ok.csv --align 3", "", 2, "3 is no power of two"),
    ("zero", "plan {d}/ok.csv --align 0", "", 2, "0 is no power of two"),
    ("zero", "plan {d}/ok.csv --threads 0", "", 2, "at least 1"),
    ("no number", "plan {d}/ok.csv --threads x", "", 2, "--threads"),
    ("zero", "plan {d}/ok.csv --stream 0", "", 2, "--stream"),
    ("no number", "plan {d}/ok.csv --seed x", "", 2, "--seed"),
    ("no size", "plan {d}/ok.csv --capacity x", "", 2, "--capacity"),
    ("no tier", "plan {d}/ok.csv --capacity x=1K", "", 2, "tier `x`"),
    ("no size", "plan {d}/ok.csv --fuse 1x", "", 2, "--fuse"),
    ("no unit", "plan {d}/ok.csv --time-limit 5", "", 2, "time unit needed"),
    ("no time", "plan {d}/ok.csv --time-limit x", "", 2, "--time-limit"),
    ("no name", "plan {d}/ok.csv --dim 7", "", 2, "write NAME=N"),
    ("no number", "plan {d}/ok.csv --dim a=b", "", 2, "`b`"),
    ("no form", "plan {d}/ok.csv --form doc", "", 2, "possible values: csv"),
    ("no size", "advise {d}/ok.trace --ram x", "", 2, "--ram"),
    ("too much", "advise {d}/ok.trace --margin 5000", "", 2, "0..=1000"),
    ("no number", "advise {d}/ok.trace --rounds x", "", 2, "--rounds"),
    ("no time", "advise {d}/ok.trace --time-limit 1", "", 2, "time unit needed"),
    ("no size", "replay {d}/ok.trace --arena -1", "", 2, "-1"),
    ("no size", "replay {d}/ok.trace --arena x", "", 2, "--arena"),
    ("too much", "replay {d}/ok.trace --arena 99999999999T", "", 2, "--arena"),
    ("no placement", "replay {d}/ok.trace --placement nice", "", 2, "possible values: tlsf"),
    ("two that exclude each other", "replay {d}/ok.trace --placement tlsf --all", "", 2, "cannot be used with"),
    ("no placement", "view {d}/ok.trace --json --placement nice", "", 2, "possible values: good-fit"),
    ("no size", "view {d}/ok.trace --json --arena x", "", 2, "--arena"),
    ("zero", "view {d}/ok.trace --json --events 0", "", 2, "at least 1"),
    ("no form", "convert {d}/ok.trace {d}/x.doc --to doc", "", 2, "possible values: text"),
    ("no time", "record --for 5 -- ls", "", 2, "time unit needed"),
    ("no time", "record --after x -- ls", "", 2, "--after"),
    ("zero", "record --max-events 0 -- ls", "", 2, "at least 1"),
    ("two that exclude each other", "record --paused --after 1s -- ls", "", 2, "cannot be used with"),
    ("an option without another", "plan {d}/ok.csv --spill", "", 2, "--capacity"),
    // Files that are not there, or no files.
    ("no file", "plan {d}/none.csv", "", 1, "none.csv: No such file"),
    ("no file", "plan {d}/none.doc", "", 1, "none.doc: No such file"),
    ("no file", "advise {d}/none.trace", "", 1, "none.trace: No such file"),
    ("no file", "replay {d}/none.trace", "", 1, "none.trace: No such file"),
    ("no file", "view {d}/none.trace --json", "", 1, "none.trace: No such file"),
    ("no file", "convert {d}/none.trace {d}/x.bin", "", 1, "none.trace: No such file"),
    ("no file", "attach {d}/none.bin -o {d}/x.trace", "", 1, "none.bin: No such file"),
    ("no firmware", "attach - --elf {d}/none -o {d}/x.trace", "", 1, "none: No such file"),
    ("no program", "attach -o {d}/x.trace -- {d}/none", "", 1, "none: No such file"),
    ("no program", "record -o {d}/x.trace -- there-is-none", "", 1, "there-is-none: there is no such program"),
    ("no program", "record -o {d}/x.trace -- {d}/none", "", 1, "there is no such program"),
    ("a script without #!", "record -o {d}/x.trace -- {d}/bare.sh", "", 1, "a script names its interpreter behind `#!`"),
    ("no interpreter", "record -o {d}/x.trace -- {d}/lost.sh", "", 1, "lost.sh: the interpreter or loader that it names is not there"),
    ("not executable", "record -o {d}/x.trace -- {d}/ok.trace", "", 1, "ok.trace: may not be run"),
    ("no library", "record -o {d}/x.trace --preload {d}/none.so -- ls", "", 1, "none.so: No such file"),
    ("a folder", "plan {d}", "", 1, "irectory"),
    ("a folder", "record -o {d}/x.trace -- {d}/folder.csv", "", 1, "folder.csv: is a directory, not a program"),
    ("a file as a folder", "view {d}/ok.trace/x", "", 1, "ok.trace/x: Not a directory"),
    ("a budget of nothing", "budget {d}/ok.trace --file {d}/empty.csv", "", 1, "empty.csv: it sets no limit: write [total]"),
    // Outputs that are the input.
    ("the input", "convert {d}/ok.trace {d}/ok.trace", "", 1, "ok.trace: it is the input as well: name another file"),
    ("the input", "convert {d}/ok.trace {d}/same.trace", "", 1, "same.trace: it is the input as well"),
    ("the input", "view {d}/ok.trace -o {d}/ok.trace", "", 1, "ok.trace: it is the input as well"),
    ("the input", "attach {d}/ok.bin -o {d}/ok.bin", "", 1, "ok.bin: it is the input as well"),
    ("the input", "plan {d}/ok.csv --quiet -o {d}/ok.csv", "", 1, "ok.csv: it is the input as well"),
    ("the output", "attach {d}/ok.bin -o {d}/x.trace --view {d}/x.trace", "", 1, "x.trace: it is the trace as well: name another file"),
    ("the output", "attach {d}/ok.bin -o {d}/y.trace --view {d}/./y.trace", "", 1, "y.trace: it is the trace as well"),
    ("the firmware", "attach {d}/ok.bin --elf {d}/ok.trace -o {d}/ok.trace", "", 1, "ok.trace: it is the input as well"),
    ("the input", "endure {d}/ok.trace -o {d}/ok.trace", "", 1, "ok.trace: it is the input as well"),
    ("the page and the data", "view {d}/ok.trace --json -o -", "", 1, "standard output: it gets the data with --json"),
    ("the page of a stream", "attach {d}/ok.bin -o - --view {d}/x.html", "", 1, "--view draws a trace in a file"),
    ("the same standard input", "diff - -", "a 1 8 8\nf 1\n", 1, "standard input: it can be read only once"),
    ("no form", "convert {d}/ok.trace -", "", 1, "-: write .trace, .txt, .bin, .json, .massif, .folded, .pb, .dhat or .pickle, or say --to"),
    ("no times", "who {d}/ok.trace --until 1ms", "", 1, "the trace has no times: give a number of events"),
    ("a folder", "plan {d} --form csv", "", 1, "irectory"),
    ("a folder", "advise {d}", "", 1, "irectory"),
    ("a folder", "replay {d}", "", 1, "irectory"),
    ("a folder", "view {d} --json", "", 1, "irectory"),
    ("a folder", "who {d}", "", 1, "irectory"),
    ("no budget", "budget {d}/ok.trace --file {d}/none.toml", "", 1, "none.toml: No such file"),
    ("no budget", "budget {d}/ok.trace --file {d}/ok.csv", "", 1, "ok.csv: line 1: "),
    ("a folder", "convert {d} {d}/x.bin", "", 1, "irectory"),
    // Outputs.
    ("output of no form", "plan {d}/ok.csv -o {d}/x.doc", "", 1, "x.doc: the plan's form is told by its ending"),
    ("output without ending", "plan {d}/ok.csv -o {d}/x", "", 1, "ending"),
    ("output in no folder", "plan {d}/ok.csv -o {d}/none/x.csv", "", 1, "none/x.csv: No such file"),
    ("output is a folder", "plan {d}/ok.csv -o {d}/folder.csv", "", 1, "folder.csv: "),
    ("output of no form", "convert {d}/ok.trace {d}/x.doc", "", 1, "x.doc: write .trace"),
    ("output in no folder", "convert {d}/ok.trace {d}/none/x.bin", "", 1, "none/x.bin: No such file"),
    ("output in no folder", "view {d}/ok.trace -o {d}/none/x.html", "", 1, "none/x.html: No such file"),
    ("output in no folder", "attach {d}/ok.bin -o {d}/none/x.trace", "", 1, "none/x.trace: No such file"),
    ("output of no form", "record -o {d}/x.doc -- ls", "", 1, "x.doc: write .trace"),
    ("output in no folder", "record -o {d}/none/x.trace -- ls", "", 1, "none/x.trace: No such file"),
    ("shapes of buffers", "plan {d}/ok.csv --shapes {d}/ok.csv", "", 1, "--shapes is for ONNX models"),
    ("shapes that are none", "plan {d}/bytes.onnx --shapes {d}/ok.csv", "", 1, "the shapes are no JSON"),
    ("model's output of buffers", "plan {d}/ok.csv -o {d}/x.tflite", "", 1, "needs a .tflite input"),
    // Empty inputs.
    ("empty", "plan {d}/empty.csv", "", 1, "empty.csv: "),
    ("empty", "plan {d}/header.csv", "", 1, "header.csv: it is empty: it holds no buffer"),
    ("empty", "plan {d}/empty.trace", "", 1, "empty.trace: the trace is empty: it holds no event"),
    ("empty", "plan {d}/empty.doc", "", 1, "empty.doc: it is empty: it holds no buffer"),
    ("empty", "plan {d}/empty.onnx", "", 1, "empty.onnx: it is empty"),
    ("empty", "plan {d}/empty.tflite", "", 1, "empty.tflite: "),
    ("empty", "advise {d}/empty.trace", "", 1, "empty.trace: the trace is empty: it holds no event"),
    ("empty", "replay {d}/empty.trace", "", 1, "empty.trace: the trace is empty: it holds no event"),
    ("empty", "view {d}/empty.trace --json", "", 1, "empty.trace: the trace is empty: it holds no event"),
    ("empty", "convert {d}/empty.trace {d}/x.bin", "", 1, "empty.trace: the trace is empty: it holds no event"),
    ("empty", "attach {d}/empty.trace -o {d}/x.trace", "", 1, "empty.trace: "),
    ("only comments", "advise {d}/comments.trace", "", 1, "comments.trace: the trace is empty"),
    ("only comments", "view {d}/comments.trace --json", "", 1, "comments.trace: the trace is empty"),
    ("empty", "advise -", "", 1, "standard input: the trace is empty: it holds no event"),
    ("empty", "replay -", "", 1, "standard input: the trace is empty: it holds no event"),
    ("empty", "view - --json", "", 1, "standard input: the trace is empty: it holds no event"),
    ("empty", "convert - {d}/x.bin", "", 1, "standard input: the trace is empty: it holds no event"),
    ("empty", "plan -", "", 1, "standard input: it is empty"),
    ("empty", "attach - -o {d}/x.trace", "", 1, "standard input: "),
    // What is no trace.
    ("no event", "advise -", "x 1 2 3\n", 1, "standard input: line 1: `x` is no event: a, r or f"),
    ("no size", "replay -", "a 1\n", 1, "line 1: `size` is missing"),
    ("no number", "replay -", "a 1 x 8\n", 1, "line 1: `size` is `x`: invalid digit"),
    ("negative", "replay -", "a 1 -5 8\n", 1, "line 1: `size` is `-5`"),
    ("too large a number", "replay -", "f 99999999999999999999\n", 1, "line 1: `id` is `99999999999999999999`"),
    ("no alignment", "replay -", "a 1 8 3\n", 1, "line 1: 3 is no alignment"),
    ("never allocated", "view - --json", "a 1 8 8\nf 2\n", 1, "line 2: block 2 is freed, but not live"),
    ("freed twice", "convert - {d}/x.json", "a 1 8 8\nf 1\nq\n", 1, "line 3: `q` is no event"),
    ("allocated twice", "advise -", "a 1 8 8\na 1 8 8\n", 1, "line 2: block 1 is allocated, but still live"),
    ("resized after its end", "replay -", "a 1 8 8\nf 1\nr 1 9\n", 1, "line 3: block 1 is resized, but not live"),
    ("time runs backwards", "view - --json", "a 1 8 8 @5\nf 1 @4\n", 1, "line 2: time falls from 5 to 4"),
    ("something left over", "advise -", "a 1 8 8 banana\n", 1, "line 1: `banana` is neither a time (@)"),
    ("more events than said", "replay -", "# events=1\na 1 8 8\nf 1\n", 1, "the header says 1 events, and there are 2"),
    ("no text", "advise {d}/bytes.trace", "", 1, "bytes.trace: line 1: no text"),
    ("too large", "advise -", "a 1 99999999999 8\n", 1, "99999999999 B are live at once, and no placement can use"),
    ("too large", "advise -", "a 1 9223372036854775807 8\n", 1, "are more than an address space holds"),
    ("more than there is", "replay {d}/huge.trace", "", 1, "huge.trace: "),
    ("no trace", "attach - -o {d}/x.trace", "hello\n", 1, "standard input: no trace came"),
    ("two traces", "replay {d}/two.bin", "", 1, "two.bin: record 3: a second trace begins here: a file holds one trace"),
    ("two traces", "advise {d}/two.bin", "", 1, "two.bin: record 3: a second trace begins here"),
    ("no defmt log", "attach - --elf {d}/ok.csv -o {d}/x.trace", "", 1, "ok.csv: "),
    ("damaged", "advise {d}/damaged.trace.zst", "", 1, "damaged.trace.zst: line 1: the input cannot be read on: the zstd data are damaged"),
    ("damaged", "plan {d}/damaged.csv.zst", "", 1, "damaged.csv.zst: "),
    ("no records", "convert {d}/other.json {d}/x.trace", "", 1, "other.json: no records"),
    ("no JSON", "convert {d}/bad.json {d}/x.trace", "", 1, "bad.json: "),
    ("JSON that ends early", "convert - {d}/x.trace", "{\"traceEvents\":[", 1, "standard input: "),
    // What is no instance.
    ("a form that is not known", "plan {d}/ok.doc", "", 1, "ok.doc: its form is not known: say --form csv"),
    ("a form that is not known", "plan -", "hello\n", 1, "standard input: its form is not known: say --form"),
    ("no column", "plan -", "id,lower,upper\na,1,2\n", 1, "standard input: the header lacks `size`"),
    ("a column twice", "plan -", "id,lower,upper,size,size\n", 1, "standard input: the header has the column `size` twice"),
    ("a column that is not known", "plan -", "id,lower,upper,size,alignement\na,0,3,10,64\n", 1, "standard input: the header has the column `alignement`, which is not known (did you mean `alignment`?): known are id, "),
    ("a column that is not known", "plan -", "id,lower,upper,size,colour\n", 1, "the column `colour`, which is not known: known are id, "),
    ("UTF-16", "plan {d}/wide.csv", "", 1, "wide.csv: line 1: the text is UTF-16: save it as UTF-8"),
    ("a fraction of a byte", "plan -", "id;lower;upper;size\na;1;2;1.5\n", 1, "standard input: line 2: `size` is `1.5`: bytes are whole"),
    ("a field too few", "plan -", "id,lower,upper,size\na,1,2\n", 1, "standard input: line 2: "),
    ("no number", "plan -", "id,lower,upper,size\na,1,2,x\n", 1, "standard input: line 2: `size` is `x`"),
    ("an empty field", "plan -", "id,lower,upper,size\na,1,2,\n", 1, "line 2: `size` is empty"),
    ("ends before it starts", "plan -", "id,lower,upper,size\na,2,1,4\n", 1, "buffer `a` ends at 1, before it starts at 2"),
    ("a name twice", "plan -", "id,lower,upper,size\na,1,2,4\na,1,2,4\n", 1, "buffer `a` is listed twice"),
    ("fixed where another is", "plan -", "id,lower,upper,size,fixed\na,0,3,10,0\nb,2,3,10,5\n", 1, "standard input: `a` and `b` are fixed where they overlap, and at time 2 both are live: move one of them"),
    ("no gap", "plan -", "id,lower,upper,size,gaps\na,1,9,4,x\n", 1, "line 2: `x` is no gap: write 3-7"),
    ("shares with none", "plan -", "id,lower,upper,size,alias\na,1,9,4,b\n", 1, "line 2: `b`, with which `a` may share, is not there"),
    ("no alignment", "plan -", "id,lower,upper,size,alignment\na,1,9,4,0\n", 1, "alignment of 0"),
    ("no model", "plan {d}/bytes.onnx", "", 1, "bytes.onnx: "),
    ("no model", "plan {d}/bytes.tflite", "", 1, "bytes.tflite: "),
    ("for models", "plan {d}/ok.csv --reorder", "", 1, "--reorder is for models"),
    ("for models", "plan {d}/ok.csv --in-place", "", 1, "--in-place is for models"),
    ("for models", "plan {d}/ok.csv --weights", "", 1, "--weights is for models"),
    ("for ONNX models", "plan {d}/ok.csv --dim a=1", "", 1, "--dim is for ONNX models"),
    // What cannot be done.
    ("an arena of nothing", "view {d}/ok.trace --json --arena 0", "", 1, "ok.trace: an arena of 0 B is refused"),
    ("too small an arena", "view {d}/big.trace --json --arena 10", "", 1, "big.trace: an arena of 10 B serves 0 of 1 requests"),
    ("too small an arena", "replay {d}/ok.trace --arena 10 --placement tlsf --no-smallest --rounds 0", "", 1, ""),
    ("too small a capacity", "plan {d}/ok.csv --capacity 10", "", 1, ""),
    // Options that would do nothing.
    ("no such tier", "plan {d}/ok.csv --capacity 1=4", "", 1, "--capacity: no buffer is in tier 1 (tiers of the buffers: 0)"),
    ("no such tier", "plan {d}/ok.csv --section 1=.x -o {d}/x.rs", "", 1, "--section: no buffer is in tier 1"),
    ("no such tier", "plan {d}/ok.csv --cache-line 1=32", "", 1, "--cache-line: no buffer is in tier 1"),
    ("no such tier", "plan {d}/ok.csv --price byte=3 --capacity 100 --capacity 2=9", "", 1, "--capacity: no buffer is in tier 2"),
    ("a tier twice", "plan {d}/ok.csv --capacity 400 --capacity 0=10", "", 1, "--capacity is given twice for tier 0"),
    ("a price twice", "plan {d}/ok.csv --price event=2 --price event=3", "", 1, "--price is given twice for event"),
    ("no price of clashes", "plan {d}/ok.csv --price event=2 --banks 2:32", "", 1, "--banks needs the price of a clash"),
    ("no banks", "plan {d}/ok.csv --price clash=2", "", 1, "--price clash=N needs the banks"),
    ("for models", "plan {d}/ok.csv --align 64", "", 1, "--align is for models"),
    ("too small a slow memory", "plan {d}/ok.csv --price byte=3 --capacity 100 --capacity 1=10", "", 1, ""),
    ("too large as buffers", "plan {d}/vast.csv", "", 1, "vast.csv: the buffers together exceed 2^63 bytes"),
    ("too large as a graph", "plan {d}/vast.json", "", 1, "vast.json: the buffers together exceed 2^63 bytes"),
    ("too large in place", "plan {d}/vast.json --in-place", "", 1, "vast.json: the buffers together exceed 2^63 bytes"),
    ("too large in lines", "plan {d}/wall.csv --cache-line 0=1048576", "", 1, "wall.csv: the buffers together exceed 2^63 bytes"),
    ("a NUL", "plan {d}/nul.csv", "", 1, "line 2: `size` is `10\\0`: invalid digit"),
    ("only NULs", "plan {d}/nuls.csv", "", 1, "the column `\\0\\0\\0`, which is not known"),
    ("UTF-16", "replay {d}/wide.trace", "", 1, "line 1: no text: byte 0 of the line is not UTF-8: save the file as UTF-8"),
    ("below zero", "budget {d}/ok.trace --file {d}/below.toml", "", 1, "line 2: invalid value: integer `-1`, expected a number from 0"),
    ("a fraction", "budget {d}/ok.trace --file {d}/half.toml", "", 1, "line 2: invalid type: floating point `1.5`, expected a number from 0"),
    ("no number", "budget {d}/ok.trace --file {d}/lots.toml", "", 1, "line 2: `lots`: invalid digit"),
    ("too little RAM", "advise {d}/ok.trace --ram 10 --rounds 0", "", 1, ""),
];

/// The files that the rows name.
fn files(folder: &Path) {
    let write = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).unwrap();
    write("ok.trace", OK.as_bytes());
    write("big.trace", b"a 1 100 8\nf 1\n");
    for name in ["ok.csv", "ok.doc"] {
        write(name, b"id,lower,upper,size\na,0,2,100\nb,1,3,50\n");
    }
    for name in ["empty.csv", "empty.trace", "empty.onnx", "empty.tflite", "empty.doc"] {
        write(name, b"");
    }
    write("header.csv", b"id,lower,upper,size\n");
    write("comments.trace", b"# name=x\n\n# nothing\n");
    write("vast.csv", b"id,lower,upper,size\na,0,3,9223372036854775807\nb,1,2,60\n");
    write("wall.csv", b"id,lower,upper,size\na,0,3,9223372036854774000\nb,1,2,60\n");
    for (name, amount) in [("below", "-1"), ("half", "1.5"), ("lots", "\"lots\"")] {
        write(&format!("{name}.toml"), format!("[total]\npeak = {amount}\n").as_bytes());
    }
    write("bare.sh", b"echo\n");
    write("lost.sh", b"#!/there/is/none\n");
    #[cfg(unix)]
    for name in ["bare.sh", "lost.sh"] {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    write("nul.csv", b"id,lower,upper,size\na,0,3,10\0\n");
    write("nuls.csv", b"\0\0\0");
    write("wide.trace", b"\xff\xfea\0 \x001\0");
    let half = "{\"name\":\"x\",\"bytes\":9223372036854775800";
    let vast = format!(
        "{{\"tensors\":[{half},\"kind\":\"input\"}},{half}}}],\"ops\":[{{\"name\":\"f\",\"kind\":\"F\",\"inputs\":[\"x\"],\"outputs\":[\"y\"]}}]}}"
    );
    write(
        "vast.json",
        vast.replacen("\"x\",\"bytes\":9223372036854775800}", "\"y\",\"bytes\":9223372036854775800}", 1)
            .as_bytes(),
    );
    write("wide.csv", b"\xff\xfei\0d\0;\0");
    for name in ["bytes.trace", "bytes.onnx", "bytes.tflite"] {
        write(name, &[0xff; 99]);
    }
    for name in ["damaged.trace.zst", "damaged.csv.zst"] {
        write(
            name,
            &[
                0x28, 0xb5, 0x2f, 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                0xff, 0xff, 0xff, 0xff,
            ],
        );
    }
    write("other.json", b"{\"traceEvents\":[{\"ph\":\"X\"}]}");
    write("bad.json", b"nothing");
    let huge: String = (0..1 << 14).map(|n| format!("a {n} 4294967295 8\n")).collect();
    write("huge.trace", huge.as_bytes());
    fs::create_dir(folder.join("folder.csv")).unwrap();
    let ok = folder.join("ok.trace");
    fs::hard_link(&ok, folder.join("same.trace")).unwrap();
    let made = Command::new(env!("CARGO_BIN_EXE_allotment"))
        .arg("convert")
        .arg(ok)
        .arg(folder.join("ok.bin"))
        .output();
    assert!(made.unwrap().status.success());
    let bytes = fs::read(folder.join("ok.bin")).unwrap();
    write("two.bin", &bytes.repeat(2));
}

/// Runs the tool; its exit status and what it printed on both outputs.
fn run(args: &[String], input: &[u8]) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_allotment"))
        .args(args)
        .env_remove("ALLOTMENT_PRELOAD")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may have ended without reading.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Signs of what only a Rust programmer understands.
const DEBUG: [&str; 9] =
    ["panicked", "Some(", "None", "Err(", "Error {", "kind:", "unwrap", "RUST_BACKTRACE", "UnexpectedEof"];

#[test]
fn what_is_wrong_is_said_in_one_plain_line() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path());
    let name = folder.path().to_str().unwrap();
    let mut wrong = Vec::new();
    for &(what, args, input, status, message) in ROWS {
        #[cfg(not(target_os = "linux"))]
        if args.starts_with("record") {
            continue;
        }
        let args: Vec<String> = args.split_whitespace().map(|arg| arg.replace("{d}", name)).collect();
        let (code, _, error) = run(&args, input.as_bytes());
        let mut why = Vec::new();
        if code != Some(status) {
            why.push(format!("exit status {code:?} instead of {status}"));
        }
        if !error.contains(message) {
            why.push(format!("no {message:?}"));
        }
        if let Some(sign) = DEBUG.iter().find(|sign| error.contains(**sign)) {
            why.push(format!("{sign:?} means nothing to a user"));
        }
        // A refusal is one line that begins with the tool's name; an answer that is no goes to the standard output.
        let one_line = error.starts_with("allotment: ") && error.lines().count() == 1;
        if status == 1 && !(one_line || message.is_empty() && error.is_empty()) {
            why.push("not one line".into());
        }
        if !why.is_empty() {
            wrong.push(format!("{what}: allotment {}\n  {}\n  {error}", args.join(" "), why.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), ROWS.len(), wrong.join("\n"));
    assert!(ROWS.len() >= 100);
    // Nothing is left of what was not written.
    let left =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left: Vec<String> = left.filter(|name| name.starts_with("x.") || name.starts_with('.')).collect();
    assert!(left.iter().all(|name| ["x.json", "x.trace"].contains(&&**name)), "{left:?}");
}

/// What cannot be read, or is the output itself, leaves the output as it was.
#[test]
fn what_is_refused_destroys_nothing() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path());
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for input in ["ok.trace", "same.trace", "bytes.trace"] {
        let (code, _, error) = run(&["convert".into(), path(input), path("ok.trace")], b"");
        assert_eq!(code, Some(1), "{error}");
        assert_eq!(fs::read_to_string(path("ok.trace")).unwrap(), OK, "{input}");
    }
}

/// A command that fails midway leaves the output of an earlier one as it was, and nothing beside it.
#[cfg(target_os = "linux")]
#[test]
fn what_fails_midway_destroys_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (trace, model) = (crate::data("espeak.trace.zst"), crate::root().join("planner/tests/data/onnx"));
    let (trace, model) = (trace.to_str().unwrap(), model.join("resnet8_cifar.onnx"));
    let plan = ["plan", model.to_str().unwrap(), "--dim", "batch=1", "--quiet", "--time-limit", "1s", "-o"];
    let convert = ["convert", trace];
    fs::write(path("bad.trace"), format!("{}f 99999\nx\n", "a 1 8 8\nf 1\n".repeat(9000))).unwrap();
    let bad = path("bad.trace");
    let cases: [(&[&str], &[&str]); 4] = [
        (&convert, &["o.trace", "o.json", "o.bin", "o.massif", "o.dhat", "o.pb", "o.pickle", "o.txt.gz"]),
        (&["convert", &bad], &["o.trace", "o.json.gz", "o.bin.zst", "o.dhat", "o.folded"]),
        (&plan, &["o.csv", "o.json", "o.rs", "o.h", "o.svg", "o.html"]),
        (&["view", trace, "--time-limit", "1s", "-o"], &["o.html"]),
    ];
    for (command, outputs) in cases {
        for output in outputs.iter().map(|name| path(name)) {
            fs::write(&output, "older").unwrap();
            let limit = if command[1] == bad { "" } else { "ulimit -f 0; " };
            let tool = Command::new("sh")
                .args(["-c", &format!("{limit}exec \"$@\""), "sh", env!("CARGO_BIN_EXE_allotment")])
                .args(command)
                .arg(&output)
                .output()
                .unwrap();
            let said = String::from_utf8(tool.stderr).unwrap();
            assert!(tool.status.code() == Some(1) && said.starts_with("allotment: "), "{output}: {said}");
            assert_eq!(fs::read_to_string(&output).unwrap(), "older", "{output}");
            fs::remove_file(&output).unwrap();
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A command that is killed leaves the output of an earlier one as it was, and nothing beside it.
#[cfg(target_os = "linux")]
#[test]
fn what_is_killed_leaves_nothing() {
    let [input, written] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (trace, folder) = (input.path().join("long.trace"), written.path());
    fs::write(&trace, "a 1 100 8\nf 1\n".repeat(1_000_000)).unwrap();
    for name in ["o.trace", "o.bin.zst", "o.json.gz"] {
        let output = folder.join(name);
        fs::write(&output, "older").unwrap();
        let mut tool = Command::new(env!("CARGO_BIN_EXE_allotment"))
            .arg("convert")
            .args([&trace, &output])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It is killed once it has a file in the folder, with a name or without.
        let open = format!("/proc/{}/fd", tool.id());
        let is_writing = || {
            let files = fs::read_dir(&open).into_iter().flatten().flatten();
            files.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| file.starts_with(folder))
        };
        while !is_writing() {
            assert!(tool.try_wait().unwrap().is_none(), "it has ended already");
        }
        tool.kill().unwrap();
        tool.wait().unwrap();
        assert_eq!(fs::read_to_string(&output).unwrap(), "older", "{name}");
        fs::remove_file(&output).unwrap();
    }
    let left: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// What is written anew keeps its permissions and the link that leads to it, and other names get what the umask leaves.
#[cfg(unix)]
#[test]
fn outputs_keep_their_permissions_and_links() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let folder = tempfile::tempdir().unwrap();
    files(folder.path());
    let path = |name: &str| folder.path().join(name);
    let mode = |name: &str| path(name).metadata().unwrap().permissions().mode() & 0o777;
    fs::write(path("plain"), "").unwrap();
    fs::write(path("real.json"), "").unwrap();
    fs::set_permissions(path("real.json"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("real.json", path("link.json")).unwrap();
    symlink("later.json", path("early.json")).unwrap();
    for output in ["new.json", "link.json", "early.json"] {
        let output = path(output).to_str().unwrap().to_owned();
        let (code, _, error) =
            run(&["convert".into(), path("ok.trace").to_str().unwrap().into(), output], b"");
        assert_eq!(code, Some(0), "{error}");
    }
    assert_eq!((mode("new.json"), mode("real.json")), (mode("plain"), 0o640));
    assert!(["link.json", "early.json"].iter().all(|name| path(name).is_symlink()));
    assert!(["real.json", "later.json"].iter().all(|name| fs::read(path(name)).unwrap().len() > 20));
}

/// A full disk or a reader that ends early is an error or nothing at all, and never a panic.
#[cfg(target_os = "linux")]
#[test]
fn outputs_that_take_nothing_are_no_panic() {
    use std::os::fd::OwnedFd;
    let commands = ["completions bash", "completions zsh", "boards", "boards --json"];
    for command in commands {
        let run = |out: OwnedFd| {
            let mut tool = Command::new(env!("CARGO_BIN_EXE_allotment"));
            let output = tool.args(command.split(' ')).stdout(out).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, error) = run(full.into());
        assert!(code == Some(1) && error.starts_with("allotment: No space left"), "{command}: {error}");
        let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(reader);
        assert_eq!(run(writer.into()), (Some(0), String::new()), "{command}");
    }
    // Nor does a standard error that is full change an exit status, least of all that of a recorded program.
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("run.trace");
    let recorded = ["record", "-o", trace.to_str().unwrap(), "--", "sh", "-c", "exit 7"];
    for (command, status) in [(&["plan", "/there/is/none.csv"][..], 1), (&["fly"], 2), (&recorded, 7)] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut tool = Command::new(env!("CARGO_BIN_EXE_allotment"));
        let tool = tool.args(command).env_remove("ALLOTMENT_PRELOAD").stderr(full).status().unwrap();
        assert_eq!(tool.code(), Some(status), "{command:?}");
    }
    assert!(trace.exists());
}

/// `-` is the standard input in every command that reads.
#[test]
fn every_command_reads_the_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let trace = fs::read(data("espeak.trace.zst")).unwrap();
    let args = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    for command in [
        "advise - --rounds 0 --json",
        "replay - --placement tlsf --rounds 0 --json",
        "view - --json",
        "plan - --json -q --time-limit 100ms",
    ] {
        let (code, output, error) = run(&args(command), &trace);
        assert_eq!(code, Some(0), "{command}: {error}");
        assert!(serde_json::from_str::<serde_json::Value>(&output).is_ok(), "{command}");
    }
    let (bin, json) = (out("a.bin"), out("a.json"));
    assert_eq!(run(&["convert".into(), "-".into(), bin.clone()], &trace).0, Some(0));
    assert_eq!(run(&["convert".into(), bin.clone(), json.clone()], b"").0, Some(0));
    assert_eq!(run(&["convert".into(), "-".into(), out("b.trace")], &fs::read(json).unwrap()).0, Some(0));
    assert_eq!(
        run(&["attach".into(), "-".into(), "-o".into(), out("c.trace")], &fs::read(bin).unwrap()).0,
        Some(0)
    );
    let text = |name: &str| fs::read_to_string(out(name)).unwrap();
    assert_eq!(text("b.trace"), text("c.trace"));
    let csv = b"id,lower,upper,size\na,0,2,100\nb,1,3,50\n";
    assert_eq!(run(&args("plan - -q"), csv).0, Some(0));
    // The form is known by what spreadsheets write as well.
    for text in [
        "\u{feff}id,lower,upper,size\na,0,3,10\n",
        "id;lower;upper;size\ngr\u{f6}\u{df}e;0;3;10\n",
        "\u{feff}id\tlower\tupper\tsize\r\na\t0\t3\t1K\r\n",
    ] {
        let (status, _, error) = run(&args("plan - -q"), text.as_bytes());
        assert_eq!(status, Some(0), "{text:?}: {error}");
    }
    let graph =
        r#"{"tensors": [{"name": "x", "bytes": 8}], "ops": [{"name": "f", "inputs": [], "outputs": ["x"]}]}"#;
    assert_eq!(run(&args("plan - -q"), graph.as_bytes()).0, Some(0));
    assert_eq!(run(&args("plan - -q --form csv"), csv).0, Some(0));
}

/// A trace that was cut off is used up to there, in every command, with a word about it.
#[test]
fn a_trace_that_is_cut_off_is_used_up_to_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let text: String = (0..60_000).map(|n| format!("a {n} {} 8\nf {n}\n", 1 + n * 7919 % 5000)).collect();
    fs::write(path("a.trace"), format!("# events=120000\n{text}")).unwrap();
    assert_eq!(run(&["convert".into(), path("a.trace"), path("a.trace.zst")], b"").0, Some(0));
    let whole = fs::read(path("a.trace.zst")).unwrap();
    fs::write(path("cut.trace.zst"), &whole[..whole.len() * 9 / 10]).unwrap();
    // Text ends inside a line, after one, or inside a number, so that another block would be freed.
    let text = fs::read(path("a.trace")).unwrap();
    let middle = text.windows(8).position(|part| part == b"\nf 40123").unwrap();
    fs::write(path("inside.trace"), &text[..middle - 3]).unwrap();
    fs::write(path("after.trace"), &text[..=middle]).unwrap();
    fs::write(path("number.trace"), &text[..middle + 5]).unwrap();
    for (file, place, why) in [
        ("cut.trace.zst", "line ", "the compressed data end too early"),
        ("inside.trace", "line ", "is missing, and the last line has no end: the trace is cut off here"),
        ("after.trace", "after event 80247", "and there are 80247: the trace is cut off or was changed"),
        ("number.trace", "after event 80247", "and there are 80247: the trace is cut off or was changed"),
    ] {
        let cut = path(file);
        let commands: [&[&str]; 4] = [
            &["replay", &cut, "--placement", "tlsf", "--rounds", "0", "--no-smallest"],
            &["view", &cut, "--json"],
            &["plan", &cut, "-q", "--time-limit", "100ms"],
            &["convert", &cut, &path("b.trace")],
        ];
        for command in commands {
            let args: Vec<String> = command.iter().map(|arg| arg.to_string()).collect();
            let (code, _, error) = run(&args, b"");
            assert_eq!(code, Some(0), "{error}");
            assert!(error.contains("warning: ") && error.contains(&format!("{file}: {place}")), "{error}");
            assert!(error.contains(&format!("{why}; the events before that are ")), "{error}");
        }
        // What was converted is a sound trace with a true header.
        let trace = allotment_trace::open(path("b.trace").as_ref()).unwrap();
        let said = trace.header().events().unwrap();
        assert_eq!(trace.map(Result::unwrap).count() as u64, said);
        assert!((20_000..110_000).contains(&said), "{said}");
    }
}

/// Compressed buffers that were cut off are planned up to there, with a word about it; a part of a model is refused.
#[test]
fn buffers_that_are_cut_off_are_planned_up_to_there() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let cut = |name: &str, bytes: &[u8], kept: usize| {
        let mut file = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
        file.write_all(bytes).unwrap();
        let whole = file.finish().unwrap();
        fs::write(path(name), &whole[..kept.min(whole.len() - 1)]).unwrap();
        path(name)
    };
    let rows: String = (0..1000).map(|n| format!("b{n},{n},{},{}\n", n + 3, 100 + n)).collect();
    let csv = format!("id,lower,upper,size\n{rows}");
    let plan = |input: String| run(&["plan".into(), input, "-q".into(), "--json".into()], b"");
    let (name, bytes, place) = ("a.csv.gz", csv.as_bytes(), "after line ");
    let (code, output, error) = plan(cut(name, bytes, bytes.len() / 2));
    assert_eq!(code, Some(0), "{error}");
    assert!(error.contains(&format!("{name}: {place}")), "{error}");
    assert!(
        error.contains(": the compressed data end too early; the buffers before that are planned"),
        "{error}"
    );
    let last: u64 = error.split(place).nth(1).unwrap().split(':').next().unwrap().parse().unwrap();
    let figures: serde_json::Value = serde_json::from_str(&output).unwrap();
    // The header is the first line.
    assert_eq!(figures[0]["buffers"], last - 1);
    assert!((400..600).contains(&last), "{last}");
    // Nothing but a header.
    let (code, _, error) = plan(cut(name, bytes, 30));
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("the compressed data end too early"), "{error}");
    let (code, _, error) = plan(cut("a.tflite.gz", &[b"\0\0\0\0TFL3".as_slice(), bytes].concat(), 5000));
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("a.tflite.gz: the compressed data end too early"), "{error}");
}

//! `allotment plan --bench`: a folder of instances, other planners beside, and the page.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{allotment, json, printed, refused, root};

/// A folder with two instances and, on Unix, stand-ins of the other planners that answer like them.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("steps.csv", "id,lower,upper,size\na,0,3,8\nb,2,5,4\nc,3,6,8\n");
    write("aligned.csv", "id,lower,upper,size,alignment\na,0,3,8,16\nb,2,5,4,16\n");
    write("notes.txt", "no instance\n");
    write(
        "minimalloc",
        "#!/bin/sh\nfor a; do case $a in --capacity=12) ok=1;; --input=*) file=${a#--input=};; esac; done\n\
         test \"$ok\" && test \"$(wc -l < \"$file\")\" -eq 4\n",
    );
    write(
        "idealloc",
        "#!/bin/sh\ntest \"$1\" = --input && grep -q '^2,3,6,8$' \"$2\" && echo 'Makespan: 16 bytes'\n",
    );
    write("slow", "#!/bin/sh\nexec sleep 100\n");
    #[cfg(unix)]
    for name in ["minimalloc", "idealloc", "slow"] {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

/// The data in a page.
fn data(page: &Path) -> Value {
    let page = fs::read_to_string(page).unwrap();
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
}

#[cfg(unix)]
#[test]
fn a_folder_is_one_table_with_other_planners_beside() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let peers = ["--minimalloc", &at("minimalloc"), "--idealloc", &at("idealloc")];
    let common = ["plan", "--bench", folder.path().to_str().unwrap(), "--quiet", "--threads", "1"];
    let text = printed(common.iter().chain(&peers));
    let row = |name: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{text}"));
        line.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let steps = row("steps.csv");
    assert_eq!(steps[2..6], ["3", "12", "12", "optimal"]);
    assert!(steps[9].starts_with("12 B in ") && steps[10].starts_with("16 B in "), "{text}");
    let aligned = row("aligned.csv");
    assert_eq!(aligned[2..6], ["2", "20", "20", "optimal"]);
    assert_eq!((&*aligned[9], &*aligned[10]), ("not for it", "not for it"));
    assert!(!text.contains("notes") && !text.contains("Not found"), "{text}");

    // A planner that does not end is stopped at the limit, and one that says nothing has failed.
    let (slow, failing) = (at("slow"), "/bin/false".to_owned());
    let peers = ["--minimalloc", &slow, "--idealloc", &failing, "--time-limit", "300ms", "--json"];
    let rows = json(common.iter().chain(&peers));
    let steps = &rows[1];
    assert_eq!(
        (&steps["name"], &steps["peak"], &steps["bound"]),
        (&"steps.csv".into(), &12.into(), &12.into())
    );
    assert_eq!(
        (&steps["minimalloc"]["result"], &steps["idealloc"]["result"]),
        (&"out-of-time".into(), &"failed".into())
    );
}

#[test]
fn the_page_of_the_collection_has_every_plan() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let instances = root().join("planner/instances");
    let args =
        ["plan", "--bench", instances.to_str().unwrap(), "--stored", "--quiet", "-o", page.to_str().unwrap()];
    let text = printed(args);
    let table = fs::read_to_string(instances.join("instances.csv")).unwrap();
    let data = data(&page);
    let (rows, plans) = (data["rows"].as_array().unwrap(), data["plans"].as_array().unwrap());
    assert_eq!((rows.len(), plans.len()), (table.lines().count() - 1, rows.len()));
    for (line, (row, plan)) in table.lines().skip(1).zip(rows.iter().zip(plans)) {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(row["name"], cells[0]);
        assert_eq!((row["bound"].to_string(), row["peak"].to_string()), (cells[3].into(), cells[5].into()));
        assert!(text.contains(cells[0]), "{text}");
        // No two rectangles of the smaller plans overlap, and the highest ends at the peak.
        let numbers: Vec<i64> =
            plan.as_array().unwrap().iter().map(|number| number.as_i64().unwrap()).collect();
        let rectangles: Vec<&[i64]> = numbers.chunks_exact(4).collect();
        assert_eq!(rectangles.len().to_string(), cells[2]);
        assert_eq!(rectangles.iter().map(|one| one[3]).max(), row["peak"].as_i64());
        for (n, a) in rectangles.iter().enumerate().take(500) {
            for b in &rectangles[..n] {
                assert!(
                    a[1] <= b[0] || b[1] <= a[0] || a[3] <= b[2] || b[3] <= a[2],
                    "{a:?} {b:?} of {}",
                    cells[0]
                );
            }
        }
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("default-src 'none'") && !page.contains("{{") && !page.contains("http://"));
}

#[test]
fn folders_that_are_none_are_refused() {
    let folder = folder();
    let path = folder.path().to_str().unwrap();
    let csv = folder.path().join("steps.csv");
    let empty = tempfile::tempdir().unwrap();
    for (args, said) in [
        (vec!["--bench", csv.to_str().unwrap()], "steps.csv"),
        (vec!["--bench", "/nowhere"], "/nowhere"),
        (vec!["--bench", empty.path().to_str().unwrap()], "it holds neither instances.csv nor any .csv"),
        (vec!["--bench", path, "--stored"], "--stored needs a folder with the table instances.csv"),
        (vec!["--bench", path, "-o", "out.csv"], "name a file that ends in .html"),
        (vec!["--bench", path, "--minimalloc", "/nowhere"], "there is no such program"),
        (vec!["--bench", path, "--capacity", "12"], "cannot be used with"),
        (vec![path, "--stored"], "--bench"),
    ] {
        let (status, error) = refused(["plan"].iter().chain(&args));
        assert!(status != 0 && error.contains(said), "{args:?}: {error}");
    }
}

/// A file that is none is named, and the others are planned.
#[test]
fn a_bad_file_ends_no_bench() {
    let folder = folder();
    let path = folder.path().to_str().unwrap();
    let page = folder.path().join("page.html");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("bad.csv", "id,lower,upper,size\na,3,1,8\n");
    write("both.csv", "id,lower,upper,size,fixed\na,0,3,10,0\nb,0,3,10,5\n");
    let output = allotment(["plan", "--bench", path, "--json", "--quiet", "-o", page.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows: Vec<_> =
        rows.as_array().unwrap().iter().map(|row| (row["name"].as_str().unwrap(), row)).collect();
    assert_eq!(
        rows.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["aligned.csv", "steps.csv", "bad.csv", "both.csv"]
    );
    assert_eq!((&rows[0].1["peak"], &rows[1].1["peak"]), (&20.into(), &12.into()));
    for (n, error) in [(2, "ends at 1, before it starts"), (3, "`a` and `b` are fixed where they overlap")] {
        let (name, row) = rows[n];
        assert!(row["error"].as_str().unwrap().contains(error), "{row}");
        assert!(said.contains(&format!("allotment: {name}: ")) && said.contains(error), "{said}");
    }
    let data = data(&page);
    assert_eq!(data["rows"].as_array().unwrap().len(), 2);
    assert!(data["how"].as_str().unwrap().contains("Not planned: bad.csv: "), "{data}");
    // A stored plan that is wrong is one of those, too.
    write(
        "instances.csv",
        "name,source,buffers,bound,bound_by,peak,found_by\ns/a,steps.csv,3,12,load,12,x\ns/b,bad.csv,1,8,load,8,x\n",
    );
    fs::create_dir(folder.path().join("plans")).unwrap();
    write("plans/s-a.txt", "0\n8\n0\n");
    let output = allotment(["plan", "--bench", path, "--stored", "--quiet"]);
    let [text, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.code() == Some(1) && text.contains("s/a") && said.contains("s/b"), "{text} {said}");
}

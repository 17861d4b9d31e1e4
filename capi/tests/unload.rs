//! Libraries that a program closes while threads that have used them go on, and then end.

mod build;

use build::library;
use core::ffi::{CStr, c_void};
use std::ffi::CString;
use std::process::Command;
use std::sync::Barrier;
use std::time::Duration;
use std::{env, thread};

/// Tells a child process which library to load, and which of its functions to call.
const LIBRARY: &str = "ALLOTMENT_TEST_LIBRARY";
const FUNCTION: &str = "ALLOTMENT_TEST_FUNCTION";

/// Loads the library, calls its function if there is a name, and closes it.
fn visit(library: &CStr, function: &CStr) {
    // SAFETY: the functions take a number and return an address.
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null(), "{:?}", CStr::from_ptr(libc::dlerror()));
        if !function.is_empty() {
            let address = libc::dlsym(handle, function.as_ptr());
            assert!(!address.is_null(), "there is no function {function:?}");
            let call: extern "C" fn(usize) -> *mut c_void = std::mem::transmute(address);
            assert!(!call(100).is_null());
        }
        assert_eq!(libc::dlclose(handle), 0);
    }
}

/// Lets threads load, use and close the library in turn and at once, and end; and forks, when it is closed.
fn visit_from_threads(library: &CStr, function: &CStr) {
    for _ in 0..3 {
        thread::scope(|scope| scope.spawn(|| visit(library, function)).join().unwrap());
    }
    let all = Barrier::new(3);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                visit(library, function);
                all.wait();
            });
        }
    });
    // A thread of the library's own looks at its heap each second.
    thread::sleep(Duration::from_millis(1500));
    // SAFETY: the child leaves at once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(0);
        }
        let mut status = -1;
        assert_eq!((libc::waitpid(child, &mut status, 0), status), (child, 0));
    }
    assert_eq!(fault(), 7, "what handled faults before the library does so after it");
}

/// A program's own handler of faults, set before it loads anything.
extern "C" fn on_fault(_: libc::c_int) {
    // SAFETY: it has no preconditions.
    unsafe { libc::_exit(7) }
}

/// Returns the status of a child that reads where nothing is.
fn fault() -> libc::c_int {
    // SAFETY: the child leaves at once, by the handler.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            std::ptr::without_provenance::<u8>(64).read_volatile();
            libc::_exit(1);
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
    }
}

#[test]
fn threads_end_after_a_library_is_closed() {
    let text = |name| CString::new(env::var(name).unwrap()).unwrap();
    if env::var_os(LIBRARY).is_some() {
        // SAFETY: the handler does nothing that a handler must not do.
        unsafe { libc::signal(libc::SIGSEGV, on_fault as extern "C" fn(_) as libc::sighandler_t) };
        let (library, function) = (text(LIBRARY), text(FUNCTION));
        visit_from_threads(&library, &function);
        assert!(!function.is_empty() || is_loaded(&library), "a library that is linked to stay is gone");
        return;
    }
    let mut failures = String::new();
    for (package, name, function) in [
        ("allotment-capi", "growing", "work"),
        ("allotment-capi", "cached", "work"),
        ("allotment-capi", "guarded", "work"),
        ("allotment-capi", "own", "work"),
        ("allotment-capi", "allotment", "malloc"),
        // It stays from the start, since the loader itself may allocate.
        ("allotment-capi", "allotment", ""),
    ] {
        let library = library(package, name, "");
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "threads_end_after_a_library_is_closed", "--nocapture"])
            .env(LIBRARY, &library)
            .env(FUNCTION, function)
            .env("ALLOTMENT_OPTIONS", if function.is_empty() { "" } else { "background,stats" })
            .output()
            .unwrap();
        if !child.status.success() {
            failures +=
                &format!("{name} {function}: {}\n{}", child.status, String::from_utf8_lossy(&child.stderr));
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// Returns whether a library is in memory.
fn is_loaded(library: &CStr) -> bool {
    // SAFETY: nothing is loaded, and one more user of a library does no harm at the end of the test.
    unsafe { !libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD).is_null() }
}

/// A library that a driver or another library may call later stays in memory; one that leaves nothing behind is unloaded.
#[cfg(feature = "gpu")]
#[test]
fn what_others_may_call_stays() {
    const DRIVER: &str = "ALLOTMENT_TEST_DRIVER";
    let text = |name| CString::new(env::var(name).unwrap()).unwrap();
    if env::var_os(LIBRARY).is_some() {
        // SAFETY: the driver's functions have these types. Work waits, and so do copies of ordinary memory.
        unsafe {
            let driver = libc::dlopen(text(DRIVER).as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
            let function = |name: &CStr| libc::dlsym(driver, name.as_ptr());
            let hold: extern "C" fn(u64, bool) = std::mem::transmute(function(c"stand_in_hold"));
            let late: extern "C" fn(bool) = std::mem::transmute(function(c"stand_in_late_pageable"));
            hold(0, true);
            late(true);
        }
        let (library, stays) = (text(LIBRARY), env::var(FUNCTION).unwrap() != "nothing");
        // What a thread has of the library's goes when it ends.
        thread::scope(|scope| scope.spawn(|| visit(&library, &text(FUNCTION))).join().unwrap());
        assert_eq!(is_loaded(&library), stays);
        return;
    }
    let driver = library("allotment-stand-in-driver", "allotment_stand_in_driver", "");
    let plugin = library("allotment-capi", "gpu", "gpu");
    for function in ["nothing", "tensor", "transfer"] {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "what_others_may_call_stays", "--nocapture"])
            .envs([(DRIVER, &driver), (LIBRARY, &plugin)])
            .env(FUNCTION, function)
            .output()
            .unwrap();
        assert!(child.status.success(), "{function}: {}", String::from_utf8_lossy(&child.stderr));
    }
}

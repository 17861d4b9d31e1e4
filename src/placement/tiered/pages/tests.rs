//! Tests of pages by themselves.

use super::*;
use crate::observe::NoStatistics;
use crate::placement::Tlsf;
use crate::placement::tiered::classes::STEP;
use crate::region::Region;

/// Returns pages in `memory`, in which objects of 48 bytes come from a page from now on.
fn pages(memory: &mut [u128; 4096]) -> (Pages<Tlsf>, Class) {
    let class = Class::of(48).unwrap();
    let mut pages = Pages::<Tlsf>::EMPTY;
    Tier::set_key(&mut pages, Key::new(memory.as_mut_ptr().cast()));
    // SAFETY: the memory is used by nothing else.
    unsafe { pages.claim(Region::new(memory.as_mut_ptr(), size_of_val(memory)), &mut NoStatistics) }.unwrap();
    for _ in 0..PATIENCE {
        pages.allocate_class(class, STEP, false).unwrap();
    }
    (pages, class)
}

/// Allocates all objects of the next page, and returns the page and the objects.
fn fill(pages: &mut Pages<Tlsf>, class: Class) -> (NonNull<u8>, Vec<NonNull<u8>>) {
    let mut allocate = || pages.allocate_class(class, STEP, false).unwrap().first;
    let objects: Vec<_> = (0..class.objects()).map(|_| allocate()).collect();
    let page = pages.find_page(objects[0].addr().get()).unwrap();
    (NonNull::new(page).unwrap().cast(), objects)
}

/// A double free is detected at every position of the object in its page and in the list.
#[test]
fn a_check_finds_every_free_object() {
    let mut memory = [0; 4096];
    let (mut pages, class) = pages(&mut memory);
    let (_, objects) = fill(&mut pages, class);
    for first in 0..objects.len() {
        // All but one, which keeps the page; each time another object is freed first.
        let freed: Vec<_> = (1..objects.len()).map(|n| objects[(first + n) % objects.len()]).collect();
        // SAFETY: the objects are live until they are freed, and then allocated again.
        unsafe {
            for (n, &object) in freed.iter().enumerate() {
                assert_eq!(pages.check_small(object, class, STEP), Ok(()), "{n}");
                assert_eq!(pages.free_class(object, class), Ok(0));
            }
        }
        // SAFETY: all objects belong to the test.
        let check = |object| unsafe { pages.check_small(object, class, STEP) };
        for &object in &freed {
            assert_eq!(check(object), Err(FreeError::AlreadyFree));
        }
        assert_eq!(check(objects[first]), Ok(()));
        freed.iter().for_each(|_| assert!(pages.allocate_class(class, STEP, false).is_some()));
    }
}

/// After a write to freed memory, a check may miss a double free, but stays in the page and ends.
#[test]
fn a_check_follows_a_damaged_list_no_further_than_the_page() {
    let mut memory = [0; 4096];
    let start = memory.as_mut_ptr().cast::<u8>();
    let (mut pages, class) = pages(&mut memory);
    let (_, before) = fill(&mut pages, class);
    let (page, objects) = fill(&mut pages, class);
    let (_, behind) = fill(&mut pages, class);
    let [freed, live] = [objects[1], objects[2]];
    let (key, from, end) = (pages.key, page.addr().get(), page.addr().get() + class.page());
    let link = |to: usize| Free::before(ptr::without_provenance_mut(to), key);
    // SAFETY: the memory belongs to the test, which restores what it overwrites.
    unsafe {
        pages.free_class(freed, class).unwrap();
        let check = |place: usize| {
            // The freed object leads to this place, which leads to a live object.
            freed.cast::<Free>().write(link(place));
            let bait = start.with_addr(place).cast::<Free>();
            let old = bait.read_unaligned();
            bait.write_unaligned(link(live.addr().get()));
            let checked = pages.check_small(live, class, STEP);
            bait.write_unaligned(old);
            checked
        };
        for place in [from - 8, from + 8, from + 16, objects[4].addr().get() + 4, end - 8, end, end + 48] {
            assert_eq!(check(place), Ok(()), "{place:#x} in a page from {from:#x} to {end:#x}");
        }
        for object in before.iter().chain(&behind) {
            assert_eq!(check(object.addr().get()), Ok(()));
        }
        // Within the page the check follows the list, so the assertions above can fail.
        assert_eq!(check(objects[4].addr().get()), Err(FreeError::AlreadyFree));
        // A list that leads to itself.
        freed.cast::<Free>().write(link(freed.addr().get()));
        assert_eq!(pages.check_small(live, class, STEP), Ok(()));
    }
}

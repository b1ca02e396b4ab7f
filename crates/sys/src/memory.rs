//! The heap of a process that is copied often: what it holds in vain, every copy pays for.

/// Gives what was freed back to the kernel, where the C library can do that.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer only, and locks the heap as every allocation does. Whether anything was given back does
    // not matter.
    unsafe {
        libc::malloc_trim(0)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_pages() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn what_was_freed_is_given_back() {
        // Small ones with one kept above them: so they are the heap's, and no end that it would give back by itself.
        let many: Vec<Box<[u8; 1024]>> = (0..16 << 10).map(|_| Box::new([1; 1024])).collect();
        let kept = Box::new([1u8; 1024]);
        let before = resident_pages();
        drop(many);
        give_back();
        assert!(kept[0] == 1 && resident_pages() + 2048 < before, "{before}");
    }
}

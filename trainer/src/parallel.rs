//! Element-wise work over slices on several threads, with results that do not depend on how many there are.

/// Calls `work(first, chunk)` on consecutive chunks of `chunk_size` elements, spread over as many threads as libtorch's
/// kernels use. `first` is the index of the chunk's first element.
pub(crate) fn for_each_chunk<T: Send>(values: &mut [T], chunk_size: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    let chunks: Vec<_> = values.chunks_mut(chunk_size).enumerate().map(|(index, chunk)| (index * chunk_size, chunk)).collect();
    run(chunks, |(first, chunk)| work(first, chunk));
}

/// Threads of the CPU's kernels, libtorch's and this crate's.
pub(crate) fn threads() -> usize {
    usize::try_from(tch::get_num_threads()).unwrap_or(1).max(1)
}

/// Calls `work` on every item, each thread taking a contiguous run of them.
pub(crate) fn run<I: Send>(items: Vec<I>, work: impl Fn(I) + Sync) {
    let threads = threads().min(items.len());
    if threads <= 1 {
        return items.into_iter().for_each(work);
    }
    let share = items.len().div_ceil(threads);
    let (mut mine, work) = (items, &work);
    rayon::in_place_scope(|scope| {
        while mine.len() > share {
            let theirs = mine.split_off(mine.len() - share);
            scope.spawn(move |_| theirs.into_iter().for_each(work));
        }
        mine.into_iter().for_each(work);
    });
}

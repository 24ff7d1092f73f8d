//! Panics of the application's code, turned into values.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

/// Runs `future`; the text of its panic if it panics.
///
/// What the future borrows may be left half changed: callers use nothing of it but a transaction, which they roll back.
pub(crate) async fn catch<F: Future>(future: F) -> Result<F::Output, String> {
    AssertUnwindSafe(future)
        .catch_unwind()
        .await
        .map_err(|panic| text(&*panic))
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a value that is no text".to_owned())
}

//! Where the packet programs' events come from.

use std::future::Future;

use crate::Error;

/// A queue that packets fill.
pub trait Events<T>: Send {
    /// Waits until there may be something. Nothing is lost when this is given up.
    ///
    /// # Errors
    /// If there will never be anything.
    fn ready(&mut self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Takes all that there is.
    ///
    /// # Errors
    /// If it cannot be read, ever.
    fn drain(&mut self, out: &mut Vec<T>) -> Result<(), Error>;
}

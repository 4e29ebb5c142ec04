//! How functions of DPDK are declared: once, as in C, and called through a place that [`crate::load()`] fills.
//!
//! A call reads the function's address from its place and jumps there, which is what a call into a shared
//! library does that the program is linked with (it reads the global offset table).

use std::ffi::c_void;
use std::sync::atomic::AtomicPtr;

/// A function that is called through `address`.
pub struct FunctionSlot {
    /// Its name, with a zero behind it.
    pub name: &'static str,
    /// Before it is loaded, that of a function that ends the process.
    pub address: &'static AtomicPtr<c_void>,
}

/// What is called in the place of a function that is not loaded. To call it is an error in this program, as it is to
/// call DPDK before it is initialised.
#[cold]
pub fn not_loaded(name: &str) -> ! {
    panic!("{name} is called before DPDK is loaded");
}

/// Declares functions as `unsafe extern "C"` does, and lists their places in `PLACES`.
macro_rules! functions {
    ($($(#[$doc:meta])* pub fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// DPDK is loaded, and the arguments are as it wants them.
            #[inline(always)]
            pub unsafe fn $name($($argument: $type),*) $(-> $result)? {
                type Function = unsafe extern "C" fn($($type),*) $(-> $result)?;
                // Relaxed: whoever may call it knows that it is loaded, and so from when.
                let address = places::$name.load(::std::sync::atomic::Ordering::Relaxed);
                // SAFETY: in the place is a function of this type: at first `absent`, later the one that C declares so.
                let function = unsafe { ::std::mem::transmute::<*mut ::std::ffi::c_void, Function>(address) };
                // SAFETY: the caller has made sure that DPDK is loaded and that the arguments are as it wants
                // them (contract of this function).
                unsafe { function($($argument),*) }
            }
        )*

        #[allow(non_upper_case_globals)]
        mod places {
            #[allow(unused_imports)]
            use super::*;
            use ::std::{ffi::c_void, sync::atomic::AtomicPtr};
            $(
                pub static $name: AtomicPtr<c_void> = {
                    unsafe extern "C" fn absent($(_: $type),*) $(-> $result)? {
                        $crate::functions::not_loaded(stringify!($name))
                    }
                    AtomicPtr::new(absent as *mut c_void)
                };
            )*
        }

        /// The places of the functions that are declared here.
        pub(crate) static PLACES: &[$crate::functions::FunctionSlot] = &[$(
            $crate::functions::FunctionSlot { name: concat!(stringify!($name), "\0"), address: &places::$name },
        )*];
    };
}

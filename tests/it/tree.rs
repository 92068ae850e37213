//! Rules of the source tree: imports, file sizes, names.

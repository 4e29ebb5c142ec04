//! Every tier against a linear scan.

//! Every rewrite leaves a frame whose key has the wanted values and whose checksums are right.

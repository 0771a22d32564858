"""Stubs of `backhaul._native`, one file for each subject; nothing is here at run time."""

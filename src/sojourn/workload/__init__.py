"""The request profile, and streams of requests made from tables or from a profile."""

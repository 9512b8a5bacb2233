"""The request profile, and streams of requests made from tables or from a profile.

`buckets.assign`, `profile.profile`, `replay.replay`, `synthesis.synthesize`, `scaling.scale`.
"""

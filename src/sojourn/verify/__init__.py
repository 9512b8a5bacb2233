"""Acceptance: did the change work?"""

"""Diagnosis by `chopperd doctor`: collected facts, checks that judge them, and findings."""

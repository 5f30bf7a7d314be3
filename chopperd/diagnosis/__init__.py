"""What `chopperd doctor` looks at and what it makes of it: facts, checks over them, findings."""

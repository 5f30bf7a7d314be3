"""Matrix products on zeros and on random data: does the sampled clock explain their time?"""

# SPDX-License-Identifier: Apache-2.0

"""Scrapy: a spider, which takes the proxy from the environment."""

import scrapy
from scrapy.crawler import CrawlerProcess

import lab


class Shop(scrapy.Spider):
    name = "shop"

    def start_requests(self):
        for i in range(lab.count):
            yield scrapy.Request(f"{lab.base}/{i}", dont_filter=True, cb_kwargs={"i": i})

    def parse(self, answer, i):
        lab.tell(i, answer.status, (answer.headers.get("Retry-After") or b"").decode())


crawler = CrawlerProcess({
    "CONCURRENT_REQUESTS": lab.width,
    "CONCURRENT_REQUESTS_PER_DOMAIN": lab.width,
    "DOWNLOAD_TIMEOUT": 60,
    "HTTPERROR_ALLOW_ALL": True,
    "LOG_LEVEL": "ERROR",
    "RETRY_ENABLED": False,
    "TELNETCONSOLE_ENABLED": False,
})
crawler.crawl(Shop)
crawler.start()

// Consent over a link: one small reduction of "somebody refuses" per sequence number, in log2(ranks) messages a rank.
//
// In round k each rank tells the one 2^k places ahead what it knows, and hears from the one 2^k places behind. After
// the last round it knows of all, for "somebody" does not mind being counted twice.
#ifndef SPARK_HVD_SRC_TRANSPORT_DIRECT_LINK_CONSENT_H_
#define SPARK_HVD_SRC_TRANSPORT_DIRECT_LINK_CONSENT_H_

#include <list>
#include <memory>
#include <vector>

#include "transport/consent.h"
#include "transport/direct/stream.h"

namespace spark_hvd {

class LinkConsent : public Consent {
 public:
  LinkConsent(std::shared_ptr<Link> link, Members members);
  ~LinkConsent() override;

  Status Vote(int64_t sequence, bool ready) override;
  Status Ask(int64_t sequence, Answer* answer) override;
  std::vector<int32_t> Missing() const override;

 private:
  struct Word {
    int64_t sequence = 0;
    int64_t refused = 0;
  };
  struct Round {
    Stream in, out;
    Word heard;            // of this sequence number when `has` is set
    std::list<Word> told;  // under way or sent
    bool has = false;
    bool sent = false;
  };

  Status Listen(Round* round);

  std::shared_ptr<Link> link_;
  const Circle circle_;
  std::vector<Round> rounds_;
  int64_t sequence_ = 0;  // voted on last, or asked about before the vote
  bool voted_ = false;
  bool refused_ = false;
  bool answered_ = false;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_DIRECT_LINK_CONSENT_H_
